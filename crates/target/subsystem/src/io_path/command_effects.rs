//! I/O commands by what they do to a namespace: hosts that may only read are refused those that change it.

use wire::opcode::{KvOpcode, NvmOpcode};

/// I/O commands that leave blocks as they are.
pub(crate) const READING: &[NvmOpcode] =
    &[NvmOpcode::FLUSH, NvmOpcode::READ, NvmOpcode::COMPARE, NvmOpcode::VERIFY, NvmOpcode::GET_LBA_STATUS];

/// I/O commands that change blocks.
pub(crate) const WRITING: &[NvmOpcode] =
    &[NvmOpcode::WRITE, NvmOpcode::WRITE_ZEROES, NvmOpcode::DATASET_MANAGEMENT, NvmOpcode::COPY];

/// Key-value commands that leave values as they are. wire §23, docs/kv-commands.md
pub(crate) const KEY_VALUE_READING: &[KvOpcode] = &[
    KvOpcode::RETRIEVE,
    KvOpcode::LIST,
    KvOpcode::EXIST,
    KvOpcode::BATCH_COLLECT,
    KvOpcode::RETRIEVE_SUBMIT,
    KvOpcode::VECTOR_FILTER,
    KvOpcode::VECTOR_REDUCE,
];

/// Key-value commands that change values, or which of them are evicted. wire §23, docs/kv-commands.md
pub(crate) const KEY_VALUE_WRITING: &[KvOpcode] = &[
    KvOpcode::STORE,
    KvOpcode::DELETE,
    KvOpcode::BATCH_SUBMIT,
    KvOpcode::STORE_SUBMIT,
    KvOpcode::STORE_DATA,
    KvOpcode::STORE_FLAGS,
    KvOpcode::PIN,
    KvOpcode::ATOMIC,
    KvOpcode::VECTOR_SCALAR,
    KvOpcode::VECTOR_VECTOR,
    KvOpcode::VECTOR_FETCH,
];

/// Whether an opcode is one of the key-value command set.
pub(crate) fn is_key_value(opcode: KvOpcode) -> bool {
    KEY_VALUE_READING.contains(&opcode) || KEY_VALUE_WRITING.contains(&opcode)
}
