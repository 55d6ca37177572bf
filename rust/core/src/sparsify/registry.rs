//! The macro behind the registry of sparsifiers.

/// Makes [`Sparsifier`](super::Sparsifier), the table of ids, and the macro `each_sparsifier` that
/// matches on it.
///
/// A row is the name of a sparsifier's type (twice if it has options), its file, and its id and name in
/// frames.
macro_rules! sparsifiers {
    ($d:tt $(
        $part:ident $(($options:ident))? in $file:ident = $id:literal $name:literal;
    )*) => {
        parts! { $d
            /// The sparsifier of a codec.
            sparsify::Sparsifier ("sparsifier"), each_sparsifier:
            $($part $(($options))? in $file;)*
        }

        $(
            impl $part {
                /// The id in frames.
                pub const ID: SparsifierId = SparsifierId($id);
            }
        )*

        impl SparsifierId {
            /// All ids that this version knows, with their names.
            pub const KNOWN: &'static [(Self, &'static str)] = &[$(($part::ID, $name)),*];
        }

        impl Sparsifier {
            /// The id in frames.
            pub fn id(self) -> SparsifierId {
                match self {
                    $(Self::$part $(($options { .. }))? => $part::ID,)*
                }
            }
        }
    };
}

pub(super) use sparsifiers;
