//! Commands supported and effects (LID 05). wire §11

use wire::log::support::{CommandEffects, CommandsAndEffects};
use wire::opcode::{AdminOpcode, KvOpcode, NvmOpcode};
use zerocopy::IntoBytes;

/// None of them changes anything that Linux would have to freeze its queues for.
const ADMIN: &[AdminOpcode] = &[
    AdminOpcode::GET_LOG_PAGE,
    AdminOpcode::IDENTIFY,
    AdminOpcode::ABORT,
    AdminOpcode::SET_FEATURES,
    AdminOpcode::GET_FEATURES,
    AdminOpcode::ASYNC_EVENT_REQUEST,
    AdminOpcode::KEEP_ALIVE,
];

/// I/O commands that leave blocks as they are.
const READING: &[NvmOpcode] = &[NvmOpcode::FLUSH, NvmOpcode::READ, NvmOpcode::COMPARE, NvmOpcode::VERIFY];

/// I/O commands that change blocks.
const WRITING: &[NvmOpcode] =
    &[NvmOpcode::WRITE, NvmOpcode::WRITE_ZEROES, NvmOpcode::DATASET_MANAGEMENT, NvmOpcode::COPY];

/// Of the key-value command set. wire §23
pub(super) fn key_value_page() -> Vec<u8> {
    let mut log = CommandsAndEffects::default();
    let supported = CommandEffects::default().with_supported(true);
    for opcode in ADMIN {
        log.set_admin(opcode.raw(), supported);
    }
    for opcode in [KvOpcode::RETRIEVE, KvOpcode::LIST, KvOpcode::EXIST] {
        log.set_io(opcode.raw(), supported);
    }
    log.set_io(NvmOpcode::FLUSH.raw(), supported);
    for opcode in [KvOpcode::STORE, KvOpcode::DELETE] {
        log.set_io(opcode.raw(), supported.with_changes_content(true));
    }
    log.as_bytes().to_vec()
}

pub(super) fn page() -> Vec<u8> {
    let mut log = CommandsAndEffects::default();
    let supported = CommandEffects::default().with_supported(true);
    for opcode in ADMIN {
        log.set_admin(opcode.raw(), supported);
    }
    for opcode in READING {
        log.set_io(opcode.raw(), supported);
    }
    for opcode in WRITING {
        log.set_io(opcode.raw(), supported.with_changes_content(true));
    }
    log.as_bytes().to_vec()
}
