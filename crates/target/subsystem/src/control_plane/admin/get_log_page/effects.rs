//! Commands supported and effects (LID 05). wire §11

use wire::log::support::{CommandEffects, CommandsAndEffects};
use wire::opcode::{AdminOpcode, NvmOpcode};
use zerocopy::IntoBytes;

use crate::io_path::command_effects::{KEY_VALUE_READING, KEY_VALUE_WRITING, READING, WRITING};

/// Effects of a command that requires no queue freeze in Linux.
const ADMIN: &[AdminOpcode] = &[
    AdminOpcode::GET_LOG_PAGE,
    AdminOpcode::IDENTIFY,
    AdminOpcode::ABORT,
    AdminOpcode::SET_FEATURES,
    AdminOpcode::GET_FEATURES,
    AdminOpcode::ASYNC_EVENT_REQUEST,
    AdminOpcode::KEEP_ALIVE,
    AdminOpcode::GET_LBA_STATUS,
];

/// Of the key-value command set. wire §23
pub(super) fn key_value_page() -> Vec<u8> {
    let flush = [NvmOpcode::FLUSH.raw()].into_iter();
    let reading = KEY_VALUE_READING.iter().map(|opcode| opcode.raw()).chain(flush);
    page_of(reading, KEY_VALUE_WRITING.iter().map(|opcode| opcode.raw()))
}

pub(super) fn page() -> Vec<u8> {
    page_of(READING.iter().map(|opcode| opcode.raw()), WRITING.iter().map(|opcode| opcode.raw()))
}

fn page_of(reading: impl Iterator<Item = u8>, writing: impl Iterator<Item = u8>) -> Vec<u8> {
    let mut log = CommandsAndEffects::default();
    let supported = CommandEffects::default().with_supported(true);
    for opcode in ADMIN {
        log.set_admin(opcode.raw(), supported);
    }
    for opcode in reading {
        log.set_io(opcode, supported);
    }
    for opcode in writing {
        log.set_io(opcode, supported.with_changes_content(true));
    }
    log.as_bytes().to_vec()
}
