//! Model test: a namespace behaves like a vector of bytes under random requests.

use proptest::prelude::*;

use super::{Bench, Step};
use crate::namespace::{BlockStore, StoreError};

/// A step of a model test, in blocks.
#[derive(Clone, Debug)]
pub(crate) enum ModelStep {
    Do { kind: u8, block: u64, count: u64, value: u8 },
    Resize(u64),
}

/// Random steps on a namespace of some `block_count` blocks, which may grow and shrink if it `resizes`.
pub(crate) fn model_steps(block_count: u64, resizes: bool) -> impl Strategy<Value = Vec<ModelStep>> {
    let one = (0u8..8, 0..block_count, 1..=block_count / 2, any::<u8>());
    let one = one.prop_map(|(kind, block, count, value)| ModelStep::Do { kind, block, count, value });
    let resize = (1..=block_count * 2).prop_map(ModelStep::Resize);
    proptest::collection::vec(prop_oneof![12 => one, u32::from(resizes) => resize], 1..40)
}

/// Carries out steps on the namespace and on a vector.
pub(crate) fn check_against_model(
    store: &dyn BlockStore,
    bench: &mut dyn Bench,
    steps: Vec<ModelStep>,
) -> Result<(), TestCaseError> {
    let block_bytes = u64::from(store.geometry().block_bytes);
    let mut model = vec![0u8; store.geometry().bytes() as usize];
    for step in steps {
        let (kind, block, count, value) = match step {
            ModelStep::Resize(block_count) => {
                store.resize(block_count * block_bytes).unwrap();
                model.resize((block_count * block_bytes) as usize, 0);
                prop_assert_eq!(store.geometry().block_count, block_count);
                continue;
            }
            ModelStep::Do { kind, block, count, value } => (kind, block, count, value),
        };
        let (offset, length) = (block * block_bytes, count * block_bytes);
        let range = offset as usize..(offset + length) as usize;
        let is_within = range.end <= model.len();
        let data: Vec<u8> = (0..length).map(|at| value.wrapping_add((at % 251) as u8)).collect();
        let is_durable = value % 2 == 0;
        let step = match kind {
            0 | 1 => Step::Read { offset, length: length as usize },
            2 | 3 => Step::Write { offset, data: data.clone(), is_durable },
            4 => Step::Deallocate { offset, length },
            5 => Step::WriteZeroes { offset, length, is_durable, may_deallocate: value % 3 == 0 },
            6 => Step::Compare { offset, data: model.get(range.clone()).unwrap_or(&data).to_vec() },
            _ => Step::Flush,
        };
        let outcome = bench.run(step.clone());
        if kind < 7 && !is_within {
            prop_assert!(
                matches!(outcome, Err(StoreError::Truncated | StoreError::Unsupported)),
                "{step:?}: {outcome:?}"
            );
            continue;
        }
        match kind {
            0 | 1 => prop_assert!(outcome.as_deref() == Ok(&model[range]), "{offset} + {length} differs"),
            2 | 3 => model[range].copy_from_slice(&data),
            4 if store.geometry().can_deallocate => model[range].fill(0),
            5 => model[range].fill(0),
            _ => {}
        }
        match (kind, outcome) {
            (6, Ok(is_equal)) => prop_assert_eq!(is_equal, vec![1]),
            (6, Err(StoreError::Unsupported)) => {}
            (_, outcome) => prop_assert!(outcome.is_ok(), "{step:?}: {outcome:?}"),
        }
    }
    let all = bench.read(0, model.len());
    prop_assert!(all == Ok(model), "the whole differs");
    Ok(())
}

/// Block, value, whether the write is durable, and whether a flush takes its place.
pub(crate) type PromiseStep = (u64, u8, bool, bool);

/// Writes to eight blocks of 512 bytes, and flushes.
pub(crate) fn promise_steps() -> impl Strategy<Value = Vec<PromiseStep>> {
    proptest::collection::vec((0u64..8, 1u8.., any::<bool>(), prop::bool::weighted(0.2)), 1..40)
}

/// Carries out the steps, and checks the bytes that a loss of power leaves: of each block what was flushed or written
/// durably, or a later write. Where `is_written_through`, each write is durable.
pub(crate) fn check_promises(
    bench: &mut dyn Bench,
    steps: Vec<PromiseStep>,
    is_written_through: bool,
    lose_power: impl FnOnce() -> Vec<u8>,
) -> Result<(), TestCaseError> {
    // By block: the promised content, and those that came after it.
    let mut blocks = vec![vec![0u8]; 8];
    for (block, value, is_durable, is_flush) in steps {
        if is_flush {
            prop_assert!(bench.flush().is_ok());
            blocks.iter_mut().for_each(|contents| drop(contents.drain(..contents.len() - 1)));
            continue;
        }
        let step = Step::Write { offset: block * 512, data: vec![value; 512], is_durable };
        prop_assert!(bench.run(step).is_ok());
        let contents = &mut blocks[block as usize];
        contents.push(value);
        if is_durable || is_written_through {
            contents.drain(..contents.len() - 1);
        }
    }
    for (contents, block) in blocks.iter().zip(lose_power().chunks(512)) {
        prop_assert!(contents.contains(&block[0]), "{} is none of {contents:?}", block[0]);
    }
    Ok(())
}
