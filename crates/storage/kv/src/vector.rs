//! Values as arrays of numbers: changed and reduced in place.
//!
//! A value of many elements is transferred once, or not at all, instead of once per element. Elements are
//! little-endian; the loops are written so that the compiler vectorizes them.
// No input from a host may cause a panic: see docs/testing.md.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]
#![cfg_attr(not(test), deny(clippy::expect_used, clippy::unwrap_used))]

use memory::with_wide_vectors;

use crate::heap::Heap;
use crate::key::KeyHash;
use crate::pair_writer::PairWriter;
use crate::place::PairPlace;

/// The element type of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Unsigned, 1 byte.
    U8,
    /// Unsigned, 2 bytes.
    U16,
    /// Unsigned, 4 bytes.
    U32,
    /// Unsigned, 8 bytes.
    U64,
    /// Signed, 1 byte.
    I8,
    /// Signed, 2 bytes.
    I16,
    /// Signed, 4 bytes.
    I32,
    /// Signed, 8 bytes.
    I64,
    /// Floating point, 4 bytes.
    F32,
    /// Floating point, 8 bytes.
    F64,
}

/// A function of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// Their sum; integers wrap.
    Add,
    /// The smaller. Of a number and NaN the number.
    Min,
    /// The larger. Of a number and NaN the number.
    Max,
    /// Bits set in both; integers only.
    And,
    /// Bits set in either; integers only.
    Or,
    /// Bits that differ; integers only.
    Xor,
}

/// The elements that a filter keeps, by comparison with the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Less.
    Less,
    /// Less or equal.
    LessOrEqual,
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
    /// Greater or equal.
    GreaterOrEqual,
    /// Greater.
    Greater,
}

/// Why a vector operation was refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorError {
    /// The value is not a whole number of elements, or the operand has the wrong length.
    Length,
    /// A bitwise function on floating-point numbers.
    Function,
    /// No memory for the copy that is needed first.
    NoMemory,
}

/// Partial results kept in parallel: two vectors of the widest kind.
const LANE_COUNT: usize = 16;

impl Element {
    /// Bytes of an element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Refuses functions of bits for floating-point numbers.
    fn check(self, function: Function) -> Result<(), VectorError> {
        let is_float = matches!(self, Self::F32 | Self::F64);
        let is_bitwise = matches!(function, Function::And | Function::Or | Function::Xor);
        if is_float && is_bitwise { Err(VectorError::Function) } else { Ok(()) }
    }

    /// The element whose loop has the same result: signs matter to Min and Max only.
    fn computed_by(self, function: Function) -> Self {
        match self {
            _ if matches!(function, Function::Min | Function::Max) => self,
            Self::I8 => Self::U8,
            Self::I16 => Self::U16,
            Self::I32 => Self::U32,
            Self::I64 => Self::U64,
            unsigned_or_float => unsigned_or_float,
        }
    }
}

/// The functions of one type, selected once per call so that each loop contains one.
macro_rules! with_function {
    (unsigned $type:ty, $function:expr, $each:ident, ($($argument:expr),*)) => {
        match $function {
            Function::Add => $each!($type, <$type>::wrapping_add, $($argument),*),
            Function::Min => $each!($type, |a: $type, b: $type| a.min(b), $($argument),*),
            Function::Max => $each!($type, |a: $type, b: $type| a.max(b), $($argument),*),
            Function::And => $each!($type, |a: $type, b: $type| a & b, $($argument),*),
            Function::Or => $each!($type, |a: $type, b: $type| a | b, $($argument),*),
            Function::Xor => $each!($type, |a: $type, b: $type| a ^ b, $($argument),*),
        }
    };
    (signed $type:ty, $function:expr, $each:ident, ($($argument:expr),*)) => {
        match $function {
            Function::Min => $each!($type, |a: $type, b: $type| a.min(b), $($argument),*),
            _ => $each!($type, |a: $type, b: $type| a.max(b), $($argument),*),
        }
    };
    (float $type:ty, $function:expr, $each:ident, ($($argument:expr),*)) => {
        match $function {
            Function::Add => $each!($type, |a: $type, b: $type| a + b, $($argument),*),
            Function::Min => $each!($type, <$type>::min, $($argument),*),
            _ => $each!($type, <$type>::max, $($argument),*),
        }
    };
}

macro_rules! with_element {
    ($element:expr, $function:expr, $each:ident, $arguments:tt) => {
        match $element.computed_by($function) {
            Element::U8 => with_function!(unsigned u8, $function, $each, $arguments),
            Element::U16 => with_function!(unsigned u16, $function, $each, $arguments),
            Element::U32 => with_function!(unsigned u32, $function, $each, $arguments),
            Element::U64 => with_function!(unsigned u64, $function, $each, $arguments),
            Element::I8 => with_function!(signed i8, $function, $each, $arguments),
            Element::I16 => with_function!(signed i16, $function, $each, $arguments),
            Element::I32 => with_function!(signed i32, $function, $each, $arguments),
            Element::I64 => with_function!(signed i64, $function, $each, $arguments),
            Element::F32 => with_function!(float f32, $function, $each, $arguments),
            Element::F64 => with_function!(float f64, $function, $each, $arguments),
        }
    };
}

/// Applies a function to every element of `values` with one operand.
///
/// # Panics
/// If a length does not fit the element, or the function does not: the callers check both.
fn update_by_scalar(element: Element, function: Function, values: &mut [u8], operand: &[u8]) {
    macro_rules! each {
        ($type:ty, $function:expr, $values:expr, $operand:expr) => {{
            let operand = <$type>::from_le_bytes($operand.try_into().expect("one element"));
            let (values, rest) = $values.as_chunks_mut::<{ size_of::<$type>() }>();
            assert!(rest.is_empty(), "whole elements");
            with_wide_vectors(|| {
                for value in values {
                    *value = $function(<$type>::from_le_bytes(*value), operand).to_le_bytes();
                }
            });
        }};
    }
    with_element!(element, function, each, (values, operand));
}

/// Applies a function to each element of `values` and the corresponding one of `operands`.
///
/// # Panics
/// As [`update_by_scalar`].
fn update_by_vector(element: Element, function: Function, values: &mut [u8], operands: &[u8]) {
    assert_eq!(values.len(), operands.len(), "an operand for each element");
    macro_rules! each {
        ($type:ty, $function:expr, $values:expr, $operands:expr) => {{
            let (values, rest) = $values.as_chunks_mut::<{ size_of::<$type>() }>();
            assert!(rest.is_empty(), "whole elements");
            let operands = $operands.as_chunks::<{ size_of::<$type>() }>().0;
            with_wide_vectors(|| {
                for (value, operand) in values.iter_mut().zip(operands) {
                    let operand = <$type>::from_le_bytes(*operand);
                    *value = $function(<$type>::from_le_bytes(*value), operand).to_le_bytes();
                }
            });
        }};
    }
    with_element!(element, function, each, (values, operands));
}

/// Folds the elements of `values` into `state`, in sixteen lanes that are folded together at the end: sums of
/// floating-point numbers depend only on that order.
///
/// # Panics
/// As [`update_by_scalar`].
fn reduce(element: Element, function: Function, values: &[u8], state: &mut [u8]) {
    macro_rules! each {
        ($type:ty, $function:expr, $values:expr, $state:expr) => {{
            let function = $function;
            let (values, rest) = $values.as_chunks::<{ size_of::<$type>() }>();
            assert!(rest.is_empty(), "whole elements");
            let mut state = <$type>::from_le_bytes((&*$state).try_into().expect("one element"));
            let (groups, rest) = values.as_chunks::<LANE_COUNT>();
            if let Some((first, groups)) = groups.split_first() {
                let mut lanes = first.map(<$type>::from_le_bytes);
                with_wide_vectors(|| {
                    // A copy: lanes that may overlap the groups stay in memory.
                    let mut sums = lanes;
                    for group in groups {
                        for (sum, value) in sums.iter_mut().zip(group) {
                            *sum = function(*sum, <$type>::from_le_bytes(*value));
                        }
                    }
                    lanes = sums;
                });
                state = lanes.into_iter().fold(state, function);
            }
            state = rest.iter().fold(state, |state, value| function(state, <$type>::from_le_bytes(*value)));
            $state.copy_from_slice(&state.to_le_bytes());
        }};
    }
    with_element!(element, function, each, (values, state));
}

/// Appends to `kept` the elements of `values` for which the comparison with the operand holds.
///
/// # Panics
/// As [`update_by_scalar`].
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "no more elements are kept than there are"
)]
fn filter(element: Element, comparison: Comparison, values: &[u8], operand: &[u8], kept: &mut Vec<u8>) {
    macro_rules! each {
        ($type:ty) => {{
            const BYTES: usize = size_of::<$type>();
            let operand = <$type>::from_le_bytes(operand.try_into().expect("one element"));
            let (values, rest) = values.as_chunks::<BYTES>();
            assert!(rest.is_empty(), "whole elements");
            // Every element is written, and only those kept are counted: no branch to mispredict.
            let start = kept.len();
            kept.resize(start + values.len() * BYTES, 0);
            let (room, _) = kept[start..].as_chunks_mut::<BYTES>();
            let mut count = 0;
            macro_rules! keep {
                ($operator:tt) => {
                    for value in values {
                        room[count] = *value;
                        count += usize::from(<$type>::from_le_bytes(*value) $operator operand);
                    }
                };
            }
            match comparison {
                Comparison::Less => keep!(<),
                Comparison::LessOrEqual => keep!(<=),
                Comparison::Equal => keep!(==),
                Comparison::NotEqual => keep!(!=),
                Comparison::GreaterOrEqual => keep!(>=),
                Comparison::Greater => keep!(>),
            }
            kept.truncate(start + count * BYTES);
        }};
    }
    match element {
        Element::U8 => each!(u8),
        Element::U16 => each!(u16),
        Element::U32 => each!(u32),
        Element::U64 => each!(u64),
        Element::I8 => each!(i8),
        Element::I16 => each!(i16),
        Element::I32 => each!(i32),
        Element::I64 => each!(i64),
        Element::F32 => each!(f32),
        Element::F64 => each!(f64),
    }
}

/// The operand of an update.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// One element, for every element of the value.
    Scalar(&'a [u8]),
    /// An element for each of the value.
    Vector(&'a [u8]),
}

/// Checks that a value is a whole number of elements, and marks it as read.
fn begin(heap: &mut Heap, place: PairPlace, element: Element) -> Result<(), VectorError> {
    if !heap.value_bytes(place).is_multiple_of(element.bytes()) {
        return Err(VectorError::Length);
    }
    heap.touch(place);
    Ok(())
}

/// Applies a function to each element of the value of a key, just found at `place`. Copies the old value to `old`, if
/// given.
///
/// # Errors
/// The reason why it was refused.
pub(crate) fn update(
    writer: &mut PairWriter,
    (hash, key, place): (KeyHash, &[u8], PairPlace),
    (element, function): (Element, Function),
    operand: Operand<'_>,
    old: Option<&mut Vec<u8>>,
) -> Result<(), VectorError> {
    let heap = &mut writer.allocator.pairs.heap;
    if matches!(operand, Operand::Scalar(operand) if operand.len() != element.bytes()) {
        return Err(VectorError::Length);
    }
    element.check(function)?;
    begin(heap, place, element)?;
    if matches!(operand, Operand::Vector(operands) if operands.len() != heap.value_bytes(place)) {
        return Err(VectorError::Length);
    }
    if let Some(old) = old {
        heap.value(place).append_to(old);
    }
    let is_done = match operand {
        Operand::Scalar(operand) => {
            writer.change(hash, key, place, |part| update_by_scalar(element, function, part, operand))
        }
        Operand::Vector(mut operands) => writer.change(hash, key, place, |part| {
            let (these, rest) = operands.split_at(part.len());
            update_by_vector(element, function, part, these);
            operands = rest;
        }),
    };
    if is_done { Ok(()) } else { Err(VectorError::NoMemory) }
}

/// Folds the elements of a value into `state`.
///
/// # Errors
/// The reason why it was refused.
pub(crate) fn reduce_value(
    heap: &mut Heap,
    place: PairPlace,
    (element, function): (Element, Function),
    state: &mut [u8],
) -> Result<(), VectorError> {
    if state.len() != element.bytes() {
        return Err(VectorError::Length);
    }
    element.check(function)?;
    begin(heap, place, element)?;
    heap.value(place).parts().for_each(|part| reduce(element, function, part, state));
    Ok(())
}

/// Appends to `kept` the elements of a value for which the comparison with the operand holds.
///
/// # Errors
/// The reason why it was refused.
pub(crate) fn filter_value(
    heap: &mut Heap,
    place: PairPlace,
    (element, comparison): (Element, Comparison),
    operand: &[u8],
    kept: &mut Vec<u8>,
) -> Result<(), VectorError> {
    if operand.len() != element.bytes() {
        return Err(VectorError::Length);
    }
    begin(heap, place, element)?;
    heap.value(place).parts().for_each(|part| filter(element, comparison, part, operand, kept));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::{Attributes, Condition, Stored};
    use crate::processor::Processor;
    use crate::settings::Settings;
    use proptest::prelude::*;

    const INTEGERS: [Element; 8] = [
        Element::U8,
        Element::U16,
        Element::U32,
        Element::U64,
        Element::I8,
        Element::I16,
        Element::I32,
        Element::I64,
    ];

    /// One element as a number, computed the simple way.
    fn number(element: Element, bytes: &[u8]) -> i128 {
        let mut wide = [0; 16];
        wide[..bytes.len()].copy_from_slice(bytes);
        let unsigned = i128::from_le_bytes(wide);
        let is_signed = matches!(element, Element::I8 | Element::I16 | Element::I32 | Element::I64);
        let bits = 8 * bytes.len();
        if is_signed && unsigned >> (bits - 1) & 1 == 1 { unsigned - (1 << bits) } else { unsigned }
    }

    fn apply(function: Function, a: i128, b: i128) -> i128 {
        match function {
            Function::Add => a + b,
            Function::Min => a.min(b),
            Function::Max => a.max(b),
            Function::And => a & b,
            Function::Or => a | b,
            Function::Xor => a ^ b,
        }
    }

    fn function() -> impl Strategy<Value = Function> {
        use Function::{Add, And, Max, Min, Or, Xor};
        prop::sample::select(vec![Add, Min, Max, And, Or, Xor])
    }

    fn comparison() -> impl Strategy<Value = Comparison> {
        use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
        prop::sample::select(vec![Less, LessOrEqual, Equal, NotEqual, GreaterOrEqual, Greater])
    }

    proptest! {
        /// Each integer type agrees with plain arithmetic, for every function.
        #[test]
        fn integers_are_what_arithmetic_says(
            which in 0usize..8, function in function(), comparison in comparison(),
            words in prop::collection::vec(any::<[u8; 8]>(), 1..60), operand: [u8; 8],
        ) {
            let element = INTEGERS[which];
            let width = element.bytes();
            let values = words.as_flattened();
            let operand = &operand[..width];
            let results = |operands: &dyn Fn(usize) -> i128| -> Vec<u8> {
                values.chunks(width).enumerate().flat_map(|(at, value)| {
                    let result = apply(function, number(element, value), operands(at));
                    result.to_le_bytes()[..width].to_vec()
                }).collect()
            };
            let mut scalar = values.to_vec();
            update_by_scalar(element, function, &mut scalar, operand);
            prop_assert_eq!(scalar, results(&|_| number(element, operand)));
            let mut operands = values.to_vec();
            operands.reverse();
            let mut vector = values.to_vec();
            update_by_vector(element, function, &mut vector, &operands);
            prop_assert_eq!(vector, results(&|at| number(element, &operands[at * width..][..width])));
            let mut state = operand.to_vec();
            reduce(element, function, values, &mut state);
            let folded = values.chunks(width)
                .fold(number(element, operand), |state, value| apply(function, state, number(element, value)));
            prop_assert_eq!(&state[..], &folded.to_le_bytes()[..width]);
            let mut kept = vec![9];
            filter(element, comparison, values, operand, &mut kept);
            let expected = values.chunks(width).filter(|value| {
                let (a, b) = (number(element, value), number(element, operand));
                match comparison {
                    Comparison::Less => a < b,
                    Comparison::LessOrEqual => a <= b,
                    Comparison::Equal => a == b,
                    Comparison::NotEqual => a != b,
                    Comparison::GreaterOrEqual => a >= b,
                    Comparison::Greater => a > b,
                }
            });
            prop_assert_eq!(&kept[1..], expected.collect::<Vec<_>>().concat());
        }
    }

    #[test]
    fn floating_point_numbers_add_and_compare_and_have_no_bits() {
        let values: Vec<u8> = (0..100).flat_map(|at| (at as f32 * 0.5).to_le_bytes()).collect();
        let mut sum = 1f32.to_le_bytes().to_vec();
        reduce(Element::F32, Function::Add, &values, &mut sum);
        assert_eq!(sum, (1.0 + 0.5 * 4950f32).to_le_bytes());
        let mut least = f32::NAN.to_le_bytes().to_vec();
        reduce(Element::F32, Function::Min, &values, &mut least);
        assert_eq!(least, 0f32.to_le_bytes());
        let mut kept = Vec::new();
        filter(Element::F32, Comparison::Greater, &values, &49f32.to_le_bytes(), &mut kept);
        assert_eq!(kept, 49.5f32.to_le_bytes());
        assert_eq!(Element::F64.check(Function::Xor), Err(VectorError::Function));
    }

    #[test]
    fn a_value_in_extents_is_one_vector() {
        let mut processor = Processor::new(Settings::default()).expect("memory");
        let hash = processor.hash(b"v");
        let value: Vec<u8> = (0..200_000u64).flat_map(u64::to_le_bytes).collect();
        let stored = processor.store(hash, b"v", &value, Attributes::default(), Condition::Always);
        assert_eq!(stored, Stored::Done);
        let place = processor.find(hash, b"v").expect("stored");
        let pin = processor.pairs_mut().heap.pin(place).expect("outside the index");
        let kind = (Element::U64, Function::Add);
        let mut old = Vec::new();
        let key = (hash, &b"v"[..], place);
        let one = 1u64.to_le_bytes();
        processor.vector_update(key, kind, Operand::Scalar(&one), Some(&mut old)).expect("done");
        assert!(old == value);
        // The value in place is no longer the one being sent.
        let place = processor.find(hash, b"v").expect("changed");
        let key = (hash, &b"v"[..], place);
        processor.vector_update(key, kind, Operand::Vector(&value), None).expect("done");
        let mut sum = 0u64.to_le_bytes();
        processor.vector_reduce(place, kind, &mut sum).expect("done");
        assert_eq!(u64::from_le_bytes(sum), 200_000 + 199_999 * 200_000);
        let mut kept = Vec::new();
        let least = (Element::U64, Comparison::GreaterOrEqual);
        processor.vector_filter(place, least, &399_995u64.to_le_bytes(), &mut kept).expect("done");
        assert_eq!(kept, [399_995u64, 399_997, 399_999].map(u64::to_le_bytes).as_flattened());
        assert!(
            processor.pairs_mut().heap.pinned(&pin).to_vec() == value,
            "what is being sent stays as it was"
        );
        processor.pairs_mut().heap.unpin(pin);
        let short = processor.vector_reduce(place, kind, &mut [0; 4]);
        assert_eq!(short, Err(VectorError::Length));
    }
}
