//! Shapes that recur in every table of the reference: codes, sets of flags, packed fields.

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
                let name = self.name().unwrap_or("unknown");
                write!(f, concat!(stringify!($name), "({:#04x} {})"), self.0, name)
            }
        }
    };
}

/// A set of independent flags. Reserved bits are kept as they came and can be asked for.
macro_rules! flags {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $repr:ident {
            $($(#[$($flag_meta:tt)*])* $flag:ident = $value:expr;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name($repr);

        ::bitflags::bitflags! {
            impl $name: $repr {
                $($(#[$($flag_meta)*])* const $flag = $value;)*
            }
        }

        impl $name {
            /// The bits that have no meaning here, as they came.
            #[inline]
            #[must_use]
            pub const fn reserved(self) -> $repr {
                self.0 & !Self::all().bits()
            }
        }

        impl ::core::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(concat!(stringify!($name), "("))?;
                ::bitflags::parser::to_writer(self, &mut *f)?;
                f.write_str(")")
            }
        }
    };
}

/// An integer with packed fields: `name, with_name: type [high:low];` gives a getter and a builder.
/// The type is `bool`, an unsigned integer, or a type made by [`codes!`] over `u8`.
macro_rules! bit_fields {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident: $repr:ident {
            $($(#[$field_meta:meta])* $get:ident, $with:ident: $kind:tt [$high:literal $(: $low:literal)?];)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        $visibility struct $name($repr);

        // Every cast below follows a mask of the field's width.
        #[allow(clippy::cast_possible_truncation, clippy::cast_lossless, clippy::unnecessary_cast)]
        impl $name {
            /// Takes the value as the wire has it; any is accepted.
            #[inline]
            #[must_use]
            $visibility const fn from_bits(bits: $repr) -> Self {
                Self(bits)
            }

            /// The value as the wire has it.
            #[inline]
            #[must_use]
            $visibility const fn bits(self) -> $repr {
                self.0
            }

            $(
                $(#[$field_meta])*
                #[inline]
                #[must_use]
                $visibility const fn $get(self) -> $kind {
                    let mask = bit_fields!(@mask $repr, $high $(, $low)?);
                    let field = (self.0 & mask) >> bit_fields!(@low $high $(, $low)?);
                    bit_fields!(@from $kind, field)
                }

                #[doc = concat!("With [`Self::", stringify!($get), "`] set; the value is no wider than the field.")]
                #[inline]
                #[must_use]
                $visibility const fn $with(self, value: $kind) -> Self {
                    let mask = bit_fields!(@mask $repr, $high $(, $low)?);
                    let field = bit_fields!(@into $kind, value, $repr);
                    debug_assert!(field <= mask >> bit_fields!(@low $high $(, $low)?));
                    Self((self.0 & !mask) | ((field << bit_fields!(@low $high $(, $low)?)) & mask))
                }
            )*
        }

        impl ::core::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($get), &self.$get()))*.finish()
            }
        }

        #[cfg(test)]
        impl $name {
            /// Each field of `bits` can be read, cleared and put back, touching no other bit;
            /// no two fields overlap.
            pub(crate) fn check_fields(bits: $repr) {
                let given = Self::from_bits(bits);
                let mut rebuilt = Self::default();
                let mut covered: $repr = 0;
                $({
                    let mask: $repr = bit_fields!(@mask $repr, $high $(, $low)?);
                    assert_eq!(covered & mask, 0, "{}.{} overlaps", stringify!($name), stringify!($get));
                    covered |= mask;
                    rebuilt = rebuilt.$with(given.$get());
                    let field = Self::default().$with(given.$get()).bits();
                    assert_eq!(field, bits & mask, "{}.{}", stringify!($name), stringify!($get));
                    let replaced = Self::from_bits(!bits).$with(given.$get()).bits();
                    let expected = (!bits & !mask) | field;
                    assert_eq!(replaced, expected, "{}.{}", stringify!($name), stringify!($get));
                })*
                assert_eq!(rebuilt.bits(), bits & covered);
            }
        }
    };

    (@low $high:literal) => { $high };
    (@low $high:literal, $low:literal) => { $low };
    (@mask $repr:ident, $high:literal) => { (1 as $repr) << $high };
    (@mask $repr:ident, $high:literal, $low:literal) => {
        (<$repr>::MAX >> (<$repr>::BITS - 1 - $high + $low)) << $low
    };
    (@from bool, $field:expr) => { $field != 0 };
    (@from u8, $field:expr) => { $field as u8 };
    (@from u16, $field:expr) => { $field as u16 };
    (@from u32, $field:expr) => { $field as u32 };
    (@from u64, $field:expr) => { $field as u64 };
    (@from $code:ident, $field:expr) => { $code::from_raw($field as u8) };
    (@into bool, $value:expr, $repr:ident) => { $value as $repr };
    (@into u8, $value:expr, $repr:ident) => { $value as $repr };
    (@into u16, $value:expr, $repr:ident) => { $value as $repr };
    (@into u32, $value:expr, $repr:ident) => { $value as $repr };
    (@into u64, $value:expr, $repr:ident) => { $value as $repr };
    (@into $code:ident, $value:expr, $repr:ident) => { $value.raw() as $repr };
}

/// Getter and setter of a multi-byte raw field as its set of flags.
macro_rules! flag_fields {
    ($($(#[$meta:meta])* $field:ident, $set:ident: $flags:ident;)*) => {$(
        $(#[$meta])*
        #[must_use]
        pub const fn $field(&self) -> $flags {
            $flags::from_bits_retain(self.$field.get())
        }

        #[doc = concat!("Sets [`Self::", stringify!($field), "`].")]
        pub fn $set(&mut self, flags: $flags) {
            self.$field.set(flags.bits());
        }
    )*};
}

/// Getter and setter of a 0-based raw field as a count, one size wider than the field.
macro_rules! count_fields {
    ($($(#[$meta:meta])* $get:ident, $set:ident: $field:ident as $count:ident;)*) => {$(
        $(#[$meta])*
        #[must_use]
        pub const fn $get(&self) -> $count {
            count_fields!(@get $count, self.$field)
        }

        #[doc = concat!("Sets [`Self::", stringify!($get), "`], clamped to what the 0-based field holds.")]
        pub fn $set(&mut self, count: $count) {
            count_fields!(@set $count, self.$field, count)
        }
    )*};
    (@get u16, $raw:expr) => { ($raw as u16).saturating_add(1) };
    (@get u32, $raw:expr) => { ($raw.get() as u32).saturating_add(1) };
    (@set u16, $raw:expr, $count:expr) => { $raw = $crate::bits::zero_based8($count) };
    (@set u32, $raw:expr, $count:expr) => { $raw.set($crate::bits::zero_based16($count)) };
}

/// Default is all zero, which is a sound value of each of these.
macro_rules! default_zeroed {
    ($($name:ident)*) => {$(
        impl Default for $name {
            fn default() -> Self {
                ::zerocopy::FromZeros::new_zeroed()
            }
        }
    )*};
}

/// Compares field offsets with the reference's table, naming the field that is off.
#[cfg(test)]
macro_rules! assert_offsets {
    ($type:ty: $($field:ident @ $offset:literal),* $(,)?) => {
        for (field, actual, expected) in
            [$((stringify!($field), ::core::mem::offset_of!($type, $field), $offset)),*]
        {
            assert_eq!(actual, expected, "offset of {}.{field}", stringify!($type));
        }
    };
}

/// `FIELDS` of a structure, in the order they are named.
macro_rules! named_fields {
    ($type:ident: $($field:ident),* $(,)?) => {
        impl $type {
            /// Its fields but the reserved ones, in wire order.
            pub const FIELDS: &'static [crate::field::Field] = &[$(crate::field::Field {
                name: stringify!($field),
                offset: ::core::mem::offset_of!($type, $field),
                length: crate::field::length_of(|value: &$type| &value.$field),
            }),*];
        }
    };
}
