//! The order and the kinds of operations, and their names.

use crate::invalid::Invalid;

/// Kind of an operation.
// A whole word: an operation with a byte in it is copied in odd pieces, and reading those back stalls for 10 ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Kind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Dataset Management with Deallocate, one range.
    Trim,
    /// Write Zeroes, without the wish to deallocate.
    WriteZeroes,
}

impl Kind {
    /// Every kind, in the order of its [`Kind::index`].
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Trim, Self::WriteZeroes];

    /// Position in [`Kind::ALL`].
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Lower-case name for tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Trim => "trim",
            Self::WriteZeroes => "write zeroes",
        }
    }
}

/// How one place follows the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each operation starts where the one before ended, and begins again at the region's end.
    Sequential,
    /// Each operation starts at a drawn place, a multiple of the greatest size that divides all sizes.
    Random,
}

/// Which kinds of operation take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// One kind.
    Only(Kind),
    /// Drawn for each operation.
    Shares(Shares),
    /// A window of writes, then reads of the same places in the same order, again and again.
    WriteThenRead,
}

/// Percentages of each kind; together 100.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Percent of reads.
    pub read: u8,
    /// Percent of writes.
    pub write: u8,
    /// Percent of trims.
    pub trim: u8,
    /// Percent of write zeroes.
    pub write_zeroes: u8,
}

/// Order and mix of the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// How one place follows the other.
    pub order: Order,
    /// Which kinds take turns.
    pub mix: Mix,
}

impl Pattern {
    /// The pattern that `spdk_nvme_perf` and fio call `name`, or one of `trim`, `randtrim`, `writezeroes`,
    /// `randwritezeroes` and `verify` (write a window, read it back). `read_percent` is of use to `rw` and
    /// `randrw` only, which take half and half without it.
    ///
    /// # Errors
    /// An unknown name, or a percentage above 100.
    pub fn named(name: &str, read_percent: Option<u8>) -> Result<Self, Invalid> {
        use {Kind::*, Order::*};
        let read = read_percent.unwrap_or(50);
        if read > 100 {
            return Err(Invalid::Above { what: "the read percentage", value: read.into(), limit: 100 });
        }
        let mixed = Mix::Shares(Shares { read, write: 100 - read, ..Shares::default() });
        let (order, mix) = match name {
            "read" => (Sequential, Mix::Only(Read)),
            "write" => (Sequential, Mix::Only(Write)),
            "rw" | "readwrite" => (Sequential, mixed),
            "trim" => (Sequential, Mix::Only(Trim)),
            "writezeroes" | "write_zeroes" | "write-zeroes" => (Sequential, Mix::Only(WriteZeroes)),
            "randread" => (Random, Mix::Only(Read)),
            "randwrite" => (Random, Mix::Only(Write)),
            "randrw" => (Random, mixed),
            "randtrim" => (Random, Mix::Only(Trim)),
            "randwritezeroes" => (Random, Mix::Only(WriteZeroes)),
            "verify" => (Sequential, Mix::WriteThenRead),
            "randverify" => (Random, Mix::WriteThenRead),
            _ => return Err(Invalid::Pattern(name.to_owned())),
        };
        Ok(Self { order, mix })
    }

    /// The name that [`Pattern::named`] takes; shares of a mix are not part of it.
    pub const fn name(&self) -> &'static str {
        let (sequential, random) = match self.mix {
            Mix::Only(Kind::Read) => ("read", "randread"),
            Mix::Only(Kind::Write) => ("write", "randwrite"),
            Mix::Only(Kind::Trim) => ("trim", "randtrim"),
            Mix::Only(Kind::WriteZeroes) => ("writezeroes", "randwritezeroes"),
            Mix::Shares(_) => ("rw", "randrw"),
            Mix::WriteThenRead => ("verify", "randverify"),
        };
        match self.order {
            Order::Sequential => sequential,
            Order::Random => random,
        }
    }

    /// Percentages over a long time.
    pub const fn shares(&self) -> Shares {
        let mut shares = Shares { read: 0, write: 0, trim: 0, write_zeroes: 0 };
        match self.mix {
            Mix::Only(Kind::Read) => shares.read = 100,
            Mix::Only(Kind::Write) => shares.write = 100,
            Mix::Only(Kind::Trim) => shares.trim = 100,
            Mix::Only(Kind::WriteZeroes) => shares.write_zeroes = 100,
            Mix::Shares(drawn) => shares = drawn,
            Mix::WriteThenRead => (shares.read, shares.write) = (50, 50),
        }
        shares
    }

    /// Whether any operation changes the content of the namespace.
    pub const fn modifies(&self) -> bool {
        self.shares().read < 100
    }
}
