//! The macro behind the registries of parts.

/// Makes the enum of a kind of part, of one row each, and the macro `$each` that matches on it: the
/// expression of `$each!(part, it => expression)` is that of every part in turn.
///
/// The enum is given with the module that it and the parts are found in. A row is the name of the
/// part's type (twice if it has options) and its file.
macro_rules! parts {
    (
        $d:tt $(#[$doc:meta])* $module:ident::$kind:ident ($what:literal), $each:ident:
        $($part:ident $(($options:ident))? in $file:ident;)*
    ) => {
        $(pub use $file::$part;)*

        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub enum $kind {
            $(
                #[doc = concat!("See [`", stringify!($part), "`](struct@", stringify!($part), ").")]
                $part $(($options))?,
            )*
        }

        $(
            impl From<$part> for $kind {
                fn from(part: $part) -> Self {
                    _ = part;
                    Self::$part $(($crate::part::payload!(part, $options)))?
                }
            }
        )*

        macro_rules! $each {
            ($d of:expr, $d it:ident => $d expression:expr) => {
                match $d of {
                    $($crate::$module::$kind::$part $(($d it @ $crate::$module::$options { .. }))? => {
                        $crate::part::unit!($d it, $crate::$module::$part $(, $options)?);
                        $d expression
                    })*
                }
            };
        }
        #[allow(unused_imports, reason = "not every kind is matched on in other files")]
        pub(crate) use $each;

        impl $kind {
            /// The names in configurations, in the order of the registry.
            pub const KINDS: &'static [&'static str] =
                &[$(<$part as $crate::part::Part>::KIND),*];

            /// Its name in a configuration.
            pub fn kind(self) -> &'static str {
                fn kind_of<P: $crate::part::Part>(_: P) -> &'static str {
                    P::KIND
                }
                $each!(self, part => kind_of(part))
            }

            /// The part that these options describe, not checked yet.
            pub fn read(options: &$crate::part::Options) -> $crate::Result<Self> {
                $(if options.kind() == <$part as $crate::part::Part>::KIND {
                    return <$part as $crate::part::Part>::read(options).map(Self::from);
                })*
                Err(options.unknown($what, Self::KINDS))
            }

            /// Some of every part, for tests, fuzzers and benches: a new part is among them.
            pub fn examples() -> Vec<Self> {
                let mut all = Vec::new();
                $(all.extend(<$part as $crate::part::Part>::examples().into_iter().map(Self::from));)*
                all
            }

            /// The examples of all parts that none of these is of, for a list that is chosen by hand.
            pub fn examples_besides(chosen: &[Self]) -> Vec<Self> {
                let chosen: Vec<_> = chosen.iter().map(|part| part.kind()).collect();
                Self::examples().into_iter().filter(|part| !chosen.contains(&part.kind())).collect()
            }

            /// Whether two parts differ at most in how much they send.
            pub fn same_kind(self, other: Self) -> bool {
                fn equal<P: $crate::part::Part>(a: P, b: P) -> bool {
                    a.sized_as(b) == b
                }
                match (self, other) {
                    $((
                        Self::$part $((a @ $options { .. }))?,
                        Self::$part $((b @ $options { .. }))?,
                    ) => {
                        $crate::part::unit!(a, $part $(, $options)?);
                        $crate::part::unit!(b, $part $(, $options)?);
                        equal(a, b)
                    })*
                    _ => false,
                }
            }

            pub(crate) fn check(self) -> $crate::Result<()> {
                $each!(self, part => $crate::part::Part::check(part))
            }
        }
    };
}

/// The first, of two.
macro_rules! payload {
    ($part:ident, $options:ident) => {
        $part
    };
}

/// Binds a part without options, which its variant does not hold.
macro_rules! unit {
    ($it:ident, $part:path) => {
        let $it = $part;
    };
    ($it:ident, $part:path, $options:ident) => {};
}

pub(crate) use {parts, payload, unit};
