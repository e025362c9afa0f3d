//! The tables of the reference, written as tables: `tables!` takes definitions of these kinds, a row per value or
//! field with its place first and its meaning last, and each row is the only place that names the value or field.
//!
//! ```text
//! pub codes Fuse: u8          1      FIRST, "first of a fused pair";         a number with names for some values
//! pub flags Nsfeat: u8        [4]    OPTIMAL_SIZES, "…";                     independent bits
//! pub bits Vwc: u8            [2:1]  flush_all, with_flush_all: FlushAll, "…";  an integer with packed fields
//! pub id Qid: u16             0      ADMIN, "…";                             an identifier, with its special values
//! pub structure AnaHeader: 16 8      pub group_count: U16, "…";              bytes, fields at their offsets
//! pub command AbortCommand    cdw10 [31:16] cid: u16, "…";                   fields of a submission queue entry
//! ```

/// Definitions of any of the kinds above, in the order of the reference.
macro_rules! tables {
    ($(
        $(#[$meta:meta])*
        $visibility:vis $kind:ident $name:ident $(: $($of:tt)::+)? { $($row:tt)* }
    )*) => {$(
        $kind! { $(#[$meta])* $visibility $name $(: $($of)::+)? { $($row)* } }
    )*};
}

/// A newtype over a wire value; over bytes it can be a field of a structure.
macro_rules! newtype {
    ($(#[$meta:meta])* $visibility:vis $name:ident(u8)) => {
        newtype! { @bytes $(#[$meta])* $visibility $name(u8) }
    };
    ($(#[$meta:meta])* $visibility:vis $name:ident([u8; $length:literal])) => {
        newtype! { @bytes $(#[$meta])* $visibility $name([u8; $length]) }
    };
    (@bytes $(#[$meta:meta])* $visibility:vis $name:ident($repr:ty)) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        #[derive(::zerocopy::FromBytes, ::zerocopy::IntoBytes, ::zerocopy::Immutable)]
        #[derive(::zerocopy::KnownLayout, ::zerocopy::Unaligned)]
        #[repr(transparent)]
        $visibility struct $name($repr);
    };
    ($(#[$meta:meta])* $visibility:vis $name:ident($repr:ident)) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        $visibility struct $name($repr);
    };
}

/// The conversions of a newtype from and to its wire value, by two names.
macro_rules! conversions {
    ($name:ident($repr:ty): $visibility:vis $from:ident, $into:ident) => {
        #[allow(dead_code, reason = "called where another table has a field of the type")]
        impl $name {
            /// Takes the value as the wire has it; any is accepted.
            #[inline]
            #[must_use]
            $visibility const fn $from(raw: $repr) -> Self {
                Self(raw)
            }

            /// The value as the wire has it.
            #[inline]
            #[must_use]
            $visibility const fn $into(self) -> $repr {
                self.0
            }
        }
    };
}

/// A newtype over a wire code. Every value is representable, so an unknown one stays visible;
/// known ones have a constant and a name.
macro_rules! codes {
    (
        $(#[$meta:meta])*
        $visibility:vis $name:ident: $repr:ident {
            $($(#[$code_meta:meta])* $value:literal $code:ident, $text:literal;)*
        }
    ) => {
        newtype! { $(#[$meta])* #[derive(PartialOrd, Ord)] $visibility $name($repr) }
        conversions! { $name($repr): pub from_raw, raw }

        impl $name {
            $(
                #[doc = concat!("`", stringify!($value), "` ", $text, ".")]
                $(#[$code_meta])*
                pub const $code: Self = Self($value);
            )*

            /// Every value that has a name, in table order.
            pub const KNOWN: &'static [Self] = &[$(Self::$code),*];

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

/// An identifier: a number that would be easily swapped with another. Shown as the number.
macro_rules! id {
    (
        $(#[$meta:meta])*
        $visibility:vis $name:ident: $repr:ident { $($value:literal $special:ident, $text:literal;)* }
    ) => {
        newtype! { $(#[$meta])* #[derive(Debug, PartialOrd, Ord)] $visibility $name($repr) }
        conversions! { $name($repr): pub new, get }
        conversions! { $name($repr): pub(crate) from_raw, raw }

        impl $name {
            $(
                #[doc = $text]
                pub const $special: Self = Self($value);
            )*
        }

        impl From<$repr> for $name {
            #[inline]
            fn from(raw: $repr) -> Self {
                Self(raw)
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// A set of independent flags. Reserved bits are kept as they came and can be asked for.
macro_rules! flags {
    (
        $(#[$meta:meta])*
        $visibility:vis $name:ident: $repr:ident {
            $([$high:literal $(: $low:literal)?] $flag:ident, $text:literal;)*
        }
    ) => {
        newtype! { $(#[$meta])* $visibility $name($repr) }
        conversions! { $name($repr): pub(crate) from_raw, raw }

        ::bitflags::bitflags! {
            impl $name: $repr {
                $(
                    #[doc = $text]
                    const $flag = bit_field!(@mask $repr, $high $(, $low)?);
                )*
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

/// An integer with packed fields, each with a getter and a builder. The type of a field is `bool`, an unsigned integer
/// or a type made by `tables!`.
macro_rules! bits {
    (
        $(#[$meta:meta])*
        $visibility:vis $name:ident: $repr:ident {
            $([$high:literal $(: $low:literal)?] $get:ident, $with:ident: $kind:tt, $text:literal;)*
        }
    ) => {
        newtype! { $(#[$meta])* $visibility $name($repr) }
        conversions! { $name($repr): $visibility from_bits, bits }
        conversions! { $name($repr): pub(crate) from_raw, raw }

        // Every cast below follows a mask of the field's width.
        #[allow(clippy::cast_possible_truncation, clippy::cast_lossless, clippy::unnecessary_cast)]
        impl $name {
            $(
                #[doc = $text]
                #[inline]
                #[must_use]
                $visibility const fn $get(self) -> $kind {
                    let mask = bit_field!(@mask $repr, $high $(, $low)?);
                    let field = (self.0 & mask) >> bit_field!(@low $high $(, $low)?);
                    bit_field!(@from $kind, field)
                }

                #[doc = concat!("With [`Self::", stringify!($get), "`] set; the value is no wider than the field.")]
                #[inline]
                #[must_use]
                $visibility const fn $with(self, value: $kind) -> Self {
                    let mask = bit_field!(@mask $repr, $high $(, $low)?);
                    let field = bit_field!(@into $kind, value, $repr);
                    debug_assert!(field <= mask >> bit_field!(@low $high $(, $low)?));
                    Self((self.0 & !mask) | ((field << bit_field!(@low $high $(, $low)?)) & mask))
                }
            )*
        }

        impl ::core::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($get), &self.$get()))*.finish()
            }
        }

        // Fields do not overlap, and each holds all its bits and touches no others.
        const _: () = {
            let covered: $repr = 0;
            $(
                let mask: $repr = bit_field!(@mask $repr, $high $(, $low)?);
                assert!(covered & mask == 0, concat!(stringify!($name), ": ", stringify!($get), " overlaps"));
                let covered = covered | mask;
                let (none, all) = ($name(0), $name(<$repr>::MAX));
                assert!(none.$with(all.$get()).0 == mask && all.$with(none.$get()).0 == !mask);
            )*
            let _ = covered;
        };
    };
}

/// The mask of bits `high:low`, and the value of a field of an integer as its type and back.
macro_rules! bit_field {
    (@low $high:literal) => {
        $high
    };
    (@low $high:literal, $low:literal) => {
        $low
    };
    (@mask $repr:ident, $high:literal) => {
        (1 as $repr) << $high
    };
    (@mask $repr:ident, $high:literal, $low:literal) => {
        (<$repr>::MAX >> (<$repr>::BITS - 1 - $high + $low)) << $low
    };
    (@from bool, $field:expr) => {
        $field != 0
    };
    (@from u8, $field:expr) => {
        $field as u8
    };
    (@from u16, $field:expr) => {
        $field as u16
    };
    (@from u32, $field:expr) => {
        $field as u32
    };
    (@from u64, $field:expr) => {
        $field as u64
    };
    (@from $kind:ident, $field:expr) => {
        $kind::from_raw($field as _)
    };
    (@into bool, $value:expr, $repr:ident) => {
        $value as $repr
    };
    (@into u8, $value:expr, $repr:ident) => {
        $value as $repr
    };
    (@into u16, $value:expr, $repr:ident) => {
        $value as $repr
    };
    (@into u32, $value:expr, $repr:ident) => {
        $value as $repr
    };
    (@into u64, $value:expr, $repr:ident) => {
        $value as $repr
    };
    (@into $kind:ident, $value:expr, $repr:ident) => {
        $value.raw() as $repr
    };
}

/// Bytes with fields at fixed offsets, which are checked, as is the size. A raw field that is not to be used as it is
/// has accessors: `field: U16 as get, set: kind`. The kind is a type made by `tables!`, or
/// - `count`: the field is 0-based; the accessors take and give the count, which is one size wider
/// - `space_padded`, `nul_padded`: printable ASCII
/// - `nqn`: the name of a subsystem
macro_rules! structure {
    (
        $(#[$meta:meta])*
        $visibility:vis $name:ident: $bytes:tt {
            $(
                $offset:literal $field_visibility:vis $field:ident: $raw:tt
                    $(as $get:ident $(, $set:ident)?: $kind:ident)? $(, $text:literal)?;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[derive(::zerocopy::FromBytes, ::zerocopy::IntoBytes, ::zerocopy::Immutable)]
        #[derive(::zerocopy::KnownLayout, ::zerocopy::Unaligned)]
        #[repr(C)]
        $visibility struct $name {
            $(
                $(#[doc = $text])?
                $field_visibility $field: $raw,
            )*
        }

        const _: () = {
            assert!(size_of::<$name>() == $bytes as usize);
            $(assert!(::core::mem::offset_of!($name, $field) == $offset, stringify!($field));)*
        };

        impl $name {
            $(structure! { @accessors $field: $raw $(as $get $(, $set)?: $kind)? $(, $text)? })*
        }
    };

    (@accessors $field:ident: $raw:tt $(, $text:literal)?) => {};
    (@accessors $field:ident: u8 as $get:ident $(, $set:ident)?: count, $text:literal) => {
        #[doc = $text]
        #[inline]
        #[must_use]
        pub const fn $get(&self) -> u16 {
            (self.$field as u16).saturating_add(1)
        }

        $(
            #[doc = concat!("Sets [`Self::", stringify!($get), "`], clamped to what the 0-based field holds.")]
            pub fn $set(&mut self, count: u16) {
                self.$field = $crate::bits::zero_based8(count);
            }
        )?
    };
    (@accessors $field:ident: U16 as $get:ident $(, $set:ident)?: count, $text:literal) => {
        #[doc = $text]
        #[inline]
        #[must_use]
        pub const fn $get(&self) -> u32 {
            (self.$field.get() as u32).saturating_add(1)
        }

        $(
            #[doc = concat!("Sets [`Self::", stringify!($get), "`], clamped to what the 0-based field holds.")]
            pub fn $set(&mut self, count: u32) {
                self.$field.set($crate::bits::zero_based16(count));
            }
        )?
    };
    (@accessors $field:ident: $raw:tt as $get:ident, $set:ident: space_padded, $text:literal) => {
        structure! { @text $field: $get, $set: Space, $text }
    };
    (@accessors $field:ident: $raw:tt as $get:ident, $set:ident: nul_padded, $text:literal) => {
        structure! { @text $field: $get, $set: Nul, $text }
    };
    (@accessors $field:ident: $raw:tt as $get:ident $(, $set:ident)?: nqn, $text:literal) => {
        #[doc = $text]
        ///
        /// # Errors
        /// The errors of [`Nqn::from_wire`](crate::nqn::Nqn::from_wire).
        pub fn $get(&self) -> Result<$crate::nqn::Nqn, $crate::nqn::NqnError> {
            $crate::nqn::Nqn::from_wire(&self.$field)
        }

        $(
            #[doc = concat!("Sets [`Self::", stringify!($get), "`].")]
            pub fn $set(&mut self, name: &$crate::nqn::Nqn) {
                self.$field = name.to_wire();
            }
        )?
    };
    (@accessors $field:ident: $raw:tt as $get:ident $(, $set:ident)?: $kind:ident, $text:literal) => {
        #[doc = $text]
        #[inline]
        #[must_use]
        pub const fn $get(&self) -> $kind {
            $kind::from_raw(self.$field.get())
        }

        $(
            #[doc = concat!("Sets [`Self::", stringify!($get), "`].")]
            pub fn $set(&mut self, value: $kind) {
                self.$field.set(value.raw());
            }
        )?
    };
    (@text $field:ident: $get:ident, $set:ident: $padding:ident, $text:literal) => {
        #[doc = $text]
        #[must_use]
        pub fn $get(&self) -> $crate::text::Text<'_> {
            $crate::text::Text::of(&self.$field)
        }

        #[doc = concat!("Sets [`Self::", stringify!($get), "`].")]
        ///
        /// # Errors
        /// [`TextError`](crate::text::TextError) if it has more bytes than the field, or is not printable ASCII.
        pub fn $set(&mut self, text: &str) -> Result<(), $crate::text::TextError> {
            $crate::text::write_text(&mut self.$field, text, $crate::text::Padding::$padding)
        }
    };
}

/// Fields of a command, each at bits of a dword, or of a pair of dwords (`cdw10_11`, `cdw12_13`): a structure that is
/// read from a submission queue entry and fills one in. With an opcode, `to_sqe` makes the entry. The types of fields
/// are those of [`bits!`].
macro_rules! command {
    (
        $(#[$meta:meta])*
        $visibility:vis $name:ident $(: $set:ident::$opcode:ident)? {
            $($dword:ident [$high:literal $(: $low:literal)?] $field:ident: $kind:tt, $text:literal;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility struct $name {
            $(
                #[doc = $text]
                pub $field: $kind,
            )*
        }

        // Every cast below follows a mask of the field's width.
        #[allow(clippy::cast_possible_truncation, clippy::cast_lossless, clippy::unnecessary_cast)]
        impl $name {
            /// Reads the fields of the command.
            #[inline]
            #[must_use]
            pub const fn from_sqe(sqe: &$crate::sqe::Sqe) -> Self {
                Self {$(
                    $field: {
                        let mask = bit_field!(@mask u64, $high $(, $low)?);
                        let field = (command!(@get sqe, $dword) & mask) >> bit_field!(@low $high $(, $low)?);
                        bit_field!(@from $kind, field)
                    },
                )*}
            }

            /// An entry whose dwords are 0, with these fields.
            #[inline]
            fn fill(&self, mut sqe: $crate::sqe::Sqe) -> $crate::sqe::Sqe {
                $({
                    let mask = bit_field!(@mask u64, $high $(, $low)?);
                    let field = bit_field!(@into $kind, self.$field, u64) << bit_field!(@low $high $(, $low)?);
                    command!(@add sqe, $dword, field & mask);
                })*
                sqe
            }

            $(command! { @to_sqe $set::$opcode })?
        }
    };

    (@get $sqe:ident, cdw10_11) => { $sqe.cdw10_11() };
    (@get $sqe:ident, cdw12_13) => { $sqe.cdw12_13() };
    (@get $sqe:ident, $dword:ident) => { $sqe.$dword.get() as u64 };
    (@add $sqe:ident, cdw10_11, $bits:expr) => { $sqe.set_cdw10_11($sqe.cdw10_11() | ($bits)) };
    (@add $sqe:ident, cdw12_13, $bits:expr) => { $sqe.set_cdw12_13($sqe.cdw12_13() | ($bits)) };
    (@add $sqe:ident, $dword:ident, $bits:expr) => { $sqe.$dword.set($sqe.$dword.get() | ($bits) as u32) };
    (@to_sqe FabricsType::$opcode:ident) => {
        /// The command with these fields; the data pointer, if it has data, is left to the caller.
        #[must_use]
        pub fn to_sqe(&self) -> $crate::sqe::Sqe {
            self.fill($crate::fabrics::fabrics($crate::opcode::FabricsType::$opcode))
        }
    };
    (@to_sqe $set:ident::$opcode:ident) => {
        /// The command with these fields; the data pointer, if it has data, is left to the caller.
        #[must_use]
        pub fn to_sqe(&self, nsid: $crate::id::Nsid) -> $crate::sqe::Sqe {
            self.fill($crate::sqe::Sqe::new($crate::opcode::$set::$opcode.raw(), nsid))
        }
    };
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
