//! Shapes that recur in every table of the reference.

/// A newtype over a wire code. Every value is representable, so an unknown one stays visible;
/// known ones have a constant and a name.
macro_rules! codes {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $repr:ident {
            $($(#[$code_meta:meta])* $code:ident = $value:literal, $text:literal;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name($repr);

        impl $name {
            $(
                #[doc = concat!("`", stringify!($value), "` ", $text, ".")]
                $(#[$code_meta])*
                pub const $code: Self = Self($value);
            )*

            /// Every value that has a name, in table order.
            pub const KNOWN: &'static [Self] = &[$(Self::$code),*];

            /// Takes the value as the wire has it; any is accepted.
            #[inline]
            #[must_use]
            pub const fn from_raw(raw: $repr) -> Self {
                Self(raw)
            }

            /// The value as the wire has it.
            #[inline]
            #[must_use]
            pub const fn raw(self) -> $repr {
                self.0
            }

            /// The name of a known value.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "unknown {:#04x}", self.0),
                }
            }
        }

        impl ::core::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                write!(f, concat!(stringify!($name), "({:#04x} {})"), self.0, self.name().unwrap_or("unknown"))
            }
        }
    };
}
