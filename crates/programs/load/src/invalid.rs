//! Errors of a load's description.

/// Why a description makes no load.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant is documented by its message")]
pub enum Invalid {
    #[error(
        "unknown pattern {0:?}: use read, write, rw, randread, randwrite, randrw, trim, randtrim, writezeroes, \
         randwritezeroes, verify or randverify"
    )]
    Pattern(String),
    #[error("{0:?} is not a size: write bytes, or a number with k, m, g or t, such as 4k")]
    Size(String),
    #[error("{0:?} is not a mix of sizes: write size/percent pairs between colons, such as 4k/70:64k/30")]
    SizeMix(String),
    #[error("percentages of the sizes add up to {sum}, not 100")]
    SizeShares { sum: u32 },
    #[error("unknown distribution {0:?}: use uniform, or zipf:THETA with THETA above 0 and up to 10")]
    Distribution(String),
    #[error("unknown arrival {0:?}: use constant or poisson")]
    Arrival(String),
    #[error("percentages of read, write, trim and write zeroes add up to {sum}, not 100")]
    Shares { sum: u32 },
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    #[error("{what} is {value}, but at most {limit} is possible")]
    Above { what: &'static str, value: u64, limit: u64 },
    #[error("a size of {bytes} bytes is not a multiple of the namespace's block of {lba_bytes} bytes")]
    PartialBlock { bytes: u32, lba_bytes: u32 },
    #[error("LBAs {first}..{end} reach past the namespace, which ends before LBA {block_count}")]
    PastEnd { first: u64, end: u64, block_count: u64 },
    #[error(
        "{blocks} blocks do not give {lanes} lanes a region of {needed_blocks} blocks each: use fewer lanes, \
         smaller operations or a wider range"
    )]
    RegionTooSmall { blocks: u64, lanes: u64, needed_blocks: u64 },
    #[error("nothing ends this load: give a time, a number of operations or a number of bytes")]
    Endless,
    #[error(
        "a rate of {rate_per_s} operations per second over {lanes} lanes is out of range: use 0.001 to 1e9 each"
    )]
    Rate { rate_per_s: f64, lanes: u32 },
    #[error("lanes that verify cannot share one region: leave the regions to each lane")]
    SharedVerify,
    #[error("verification needs blocks of 512 to 65536 bytes in whole words, this namespace has {lba_bytes}")]
    VerifyBlock { lba_bytes: u32 },
}
