//! The macro behind the registry of quantizers.

/// Makes [`Quantizer`](super::Quantizer), [`ValueCoding`](super::ValueCoding), the table of ids, and
/// the macros `each_quantizer` and `each_coding` that match on both.
///
/// A row is the name of a quantizer's type (twice if it has options), the file with its `Coding`, and
/// the id and name of each variety of that in frames.
macro_rules! quantizers {
    ($d:tt $(
        $part:ident $(($options:ident))? in $file:ident = $($id:literal $name:literal),+;
    )*) => {
        parts! { $d
            /// The quantizer of a codec.
            quantize::Quantizer ("quantizer"), each_quantizer:
            $($part $(($options))? in $file;)*
        }

        /// How the values of one frame are coded.
        ///
        /// A value section is a prologue of the coding's parameters, its scales as float32, and then
        /// the codes of all entries, packed from the least significant bit of each byte up. Where
        /// there are no entries, the section is empty.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ValueCoding {
            /// No entries.
            Empty(QuantizerId),
            $(
                #[doc = concat!("That of [`", stringify!($part), "`](struct@", stringify!($part), ").")]
                $part($file::Coding),
            )*
        }

        $(
            impl From<$file::Coding> for ValueCoding {
                fn from(coding: $file::Coding) -> Self {
                    Self::$part(coding)
                }
            }
        )*

        /// The expression for a coding, or the other one where there are no entries.
        macro_rules! each_coding {
            ($d of:expr, $d it:ident => $d expression:expr, $d empty:expr) => {
                match $d of {
                    $crate::quantize::ValueCoding::Empty(_) => $d empty,
                    $($crate::quantize::ValueCoding::$part($d it) => $d expression,)*
                }
            };
        }
        pub(crate) use each_coding;

        impl QuantizerId {
            /// All ids that this version knows, with their names.
            pub const KNOWN: &'static [(Self, &'static str)] =
                &[$($((Self($id), $name)),+),*];

            /// The exponents that a header with this id may have, if this version knows it.
            pub(crate) fn exponents(self) -> Option<std::ops::RangeInclusive<i16>> {
                $(if let Some(variety) = ids::position(&[$($id),+], self) {
                    return Some(<$file::Coding as Code>::exponents(variety));
                })*
                None
            }
        }

        impl ValueCoding {
            /// The id of its quantizer.
            pub fn id(self) -> QuantizerId {
                match self {
                    Self::Empty(id) => id,
                    $(Self::$part(coding) => QuantizerId([$($id),+][coding.head().variety]),)*
                }
            }

            /// The coding with this id, whose prologue `section` begins with; none if this version
            /// does not know it.
            fn read(id: QuantizerId, exponent: i16, section: &[u8]) -> $crate::Result<Option<Self>> {
                $(if let Some(variety) = ids::position(&[$($id),+], id) {
                    let head = coding::Head { variety, exponent };
                    return <$file::Coding as Code>::parse(head, section).map(|c| Some(c.into()));
                })*
                Ok(None)
            }
        }
    };
}

pub(super) use quantizers;
