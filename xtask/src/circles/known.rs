//! Circles that are still to be untied: the list only shrinks.

/// The files of each.
pub(crate) const KNOWN: &[&[&str]] = &[
    &[
        "crates/memcached/src/command.rs",
        "crates/memcached/src/execute.rs",
        "crates/memcached/src/incoming.rs",
        "crates/memcached/src/protocol/binary.rs",
        "crates/memcached/src/protocol/decode.rs",
        "crates/memcached/src/protocol/decoded.rs",
        "crates/memcached/src/protocol/number.rs",
    ],
    &[
        "crates/store/src/block/error.rs",
        "crates/store/src/block/file_open.rs",
        "crates/store/src/key_value.rs",
        "crates/store/src/key_value/file.rs",
        "crates/store/src/key_value/mark.rs",
        "crates/store/src/key_value/memory.rs",
        "crates/store/src/key_value/superblock.rs",
    ],
    &[
        "crates/subsystem/src/attached.rs",
        "crates/subsystem/src/commands.rs",
        "crates/subsystem/src/key_value/arriving.rs",
        "crates/subsystem/src/key_value/batch.rs",
        "crates/subsystem/src/key_value/digest.rs",
        "crates/subsystem/src/key_value/execute.rs",
        "crates/subsystem/src/key_value/large.rs",
        "crates/subsystem/src/key_value/log_waiters.rs",
        "crates/subsystem/src/key_value/message.rs",
        "crates/subsystem/src/key_value/scattered.rs",
        "crates/subsystem/src/key_value/serve.rs",
        "crates/subsystem/src/message.rs",
        "crates/subsystem/src/nvm_io.rs",
        "crates/subsystem/src/running.rs",
    ],
];
