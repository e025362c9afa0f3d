//! Outcomes of operations on numbers and vectors, computed from their description: docs/kv-commands.md §2

use std::rc::Rc;

use wire::kv::operation::{
    AtomicFunction, AtomicOperation, AtomicOptions, ElementCode, VectorComparison, VectorFunction,
};

/// The numbers before and after an operation on a number: `None` if it has another width.
pub(super) fn atomic(operation: &AtomicOperation, value: &[u8]) -> Option<(u64, u64)> {
    let width = if operation.options.contains(AtomicOptions::NARROW) { 4 } else { 8 };
    let mut bytes = [0; 8];
    bytes.get_mut(..width).filter(|bytes| bytes.len() == value.len())?.copy_from_slice(value);
    let before = u64::from_le_bytes(bytes);
    Some((before, changed(operation, before)))
}

/// The number that an absent one begins with, if the operation creates it.
pub(super) fn initial(operation: &AtomicOperation) -> Option<Vec<u8>> {
    let width = if operation.options.contains(AtomicOptions::NARROW) { 4 } else { 8 };
    let creates = operation.options.contains(AtomicOptions::CREATE);
    creates.then(|| operation.initial.to_le_bytes()[..width].to_vec())
}

fn changed(operation: &AtomicOperation, before: u64) -> u64 {
    let AtomicOperation { operand, second, .. } = *operation;
    let mask = operation.mask();
    let after = match operation.function {
        AtomicFunction::ADD => u128::from(before) + u128::from(operand),
        AtomicFunction::ADD_UP_TO => {
            let sum = u128::from(before) + u128::from(operand);
            if sum > u128::from(second.min(mask)) { before.into() } else { sum }
        }
        AtomicFunction::TAKE_AWAY => (if operand > before { before } else { before - operand }).into(),
        AtomicFunction::MIN => before.min(operand & mask).into(),
        AtomicFunction::MAX => before.max(operand & mask).into(),
        AtomicFunction::AND => (before & operand).into(),
        AtomicFunction::OR => (before | operand).into(),
        AtomicFunction::XOR => (before ^ operand).into(),
        AtomicFunction::SWAP => operand.into(),
        AtomicFunction::COMPARE_AND_SWAP => (if before == second & mask { operand } else { before }).into(),
        other => panic!("no function is drawn like {other:?}"),
    };
    after as u64 & mask
}

/// A command on a vector of integers.
#[derive(Clone, Debug)]
pub(crate) struct Vector {
    pub(crate) element: ElementCode,
    pub(crate) work: VectorWork,
}

/// The operation on its elements.
#[derive(Clone, Debug)]
pub(crate) enum VectorWork {
    /// Each is combined with the operand; the answer is the former vector, or its length.
    Scalar { function: VectorFunction, operand: u64, fetches: bool },
    /// Each is combined with that of the operand at the same place.
    Vector { function: VectorFunction, operand: Rc<[u8]> },
    /// All are combined.
    Reduce { function: VectorFunction, initial: u64 },
    /// Those are the answer for which the comparison holds.
    Filter { comparison: VectorComparison, operand: u64 },
}

/// The effect of a command on a vector.
pub(super) enum Effect {
    /// The value is replaced; the answer has it, or its length.
    Changed { value: Rc<[u8]>, fetches: bool },
    /// The answer is this element.
    Element(u64),
    /// The answer has these bytes.
    Bytes(Rc<[u8]>),
}

impl Vector {
    /// Whether it may change the value.
    pub(super) fn changes(&self) -> bool {
        matches!(self.work, VectorWork::Scalar { .. } | VectorWork::Vector { .. })
    }

    fn width(&self) -> usize {
        self.element.bytes().expect("elements that exist are drawn")
    }

    /// The bits of an element.
    pub(crate) fn mask(&self) -> u64 {
        u64::MAX >> (64 - 8 * self.width())
    }

    /// The number that the bits of an element stand for.
    fn number(&self, bits: u64) -> i128 {
        let is_signed =
            [ElementCode::I8, ElementCode::I16, ElementCode::I32, ElementCode::I64].contains(&self.element);
        let bits = bits & self.mask();
        let sign = self.mask() / 2 + 1;
        if is_signed && bits & sign != 0 {
            i128::from(bits) - i128::from(self.mask()) - 1
        } else {
            i128::from(bits)
        }
    }

    fn combined(&self, function: VectorFunction, one: u64, other: u64) -> u64 {
        let is_less = self.number(one) < self.number(other);
        let bits = match function {
            VectorFunction::ADD => one.wrapping_add(other),
            VectorFunction::MIN => {
                if is_less {
                    one
                } else {
                    other
                }
            }
            VectorFunction::MAX => {
                if is_less {
                    other
                } else {
                    one
                }
            }
            VectorFunction::AND => one & other,
            VectorFunction::OR => one | other,
            VectorFunction::XOR => one ^ other,
            other => panic!("no function is drawn like {other:?}"),
        };
        bits & self.mask()
    }

    fn holds(&self, comparison: VectorComparison, element: u64, operand: u64) -> bool {
        let order = self.number(element).cmp(&self.number(operand));
        match comparison {
            VectorComparison::LESS => order.is_lt(),
            VectorComparison::LESS_OR_EQUAL => order.is_le(),
            VectorComparison::EQUAL => order.is_eq(),
            VectorComparison::NOT_EQUAL => order.is_ne(),
            VectorComparison::GREATER_OR_EQUAL => order.is_ge(),
            VectorComparison::GREATER => order.is_gt(),
            other => panic!("no comparison is drawn like {other:?}"),
        }
    }

    fn elements<'a>(&self, value: &'a [u8]) -> impl Iterator<Item = u64> + 'a {
        value.chunks_exact(self.width()).map(|bytes| {
            let mut wide = [0; 8];
            wide[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(wide)
        })
    }

    fn bytes(&self, elements: impl Iterator<Item = u64>) -> Rc<[u8]> {
        let width = self.width();
        elements.flat_map(|element| element.to_le_bytes().into_iter().take(width)).collect()
    }

    /// Its effect on a value: `None` if that is no such vector.
    pub(super) fn effect(&self, value: &[u8]) -> Option<Effect> {
        if !value.len().is_multiple_of(self.width()) {
            return None;
        }
        let elements = self.elements(value);
        Some(match &self.work {
            VectorWork::Scalar { function, operand, fetches } => {
                let changed = elements.map(|element| self.combined(*function, element, *operand));
                Effect::Changed { value: self.bytes(changed), fetches: *fetches }
            }
            VectorWork::Vector { operand, .. } if operand.len() != value.len() => return None,
            VectorWork::Vector { function, operand } => {
                let both = elements.zip(self.elements(operand));
                let changed = both.map(|(one, other)| self.combined(*function, one, other));
                Effect::Changed { value: self.bytes(changed), fetches: false }
            }
            VectorWork::Reduce { function, initial } => {
                let initial = initial & self.mask();
                Effect::Element(elements.fold(initial, |all, element| self.combined(*function, all, element)))
            }
            VectorWork::Filter { comparison, operand } => {
                let kept = elements.filter(|element| self.holds(*comparison, *element, *operand));
                Effect::Bytes(self.bytes(kept))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(operation: AtomicOperation, value: &[u8]) -> Option<(u64, u64)> {
        atomic(&operation, value)
    }

    #[test]
    fn numbers_change_as_described() {
        let seven = 7u64.to_le_bytes();
        assert_eq!(after(AtomicOperation::new(AtomicFunction::ADD, u64::MAX), &seven), Some((7, 6)));
        assert_eq!(after(AtomicOperation::add_up_to(3, 9), &seven), Some((7, 7)));
        assert_eq!(after(AtomicOperation::add_up_to(3, 10), &seven), Some((7, 10)));
        assert_eq!(after(AtomicOperation::new(AtomicFunction::TAKE_AWAY, 8), &seven), Some((7, 7)));
        assert_eq!(after(AtomicOperation::compare_and_swap(7, 1), &seven), Some((7, 1)));
        assert_eq!(after(AtomicOperation::compare_and_swap(8, 1), &seven), Some((7, 7)));
        let narrow = AtomicOperation::new(AtomicFunction::SWAP, 1 << 32 | 5).narrow();
        assert_eq!((after(narrow, &seven), after(narrow, &[1, 0, 0, 0])), (None, Some((1, 5))));
    }

    #[test]
    fn vectors_change_as_described() {
        let vector = |work| Vector { element: ElementCode::I8, work };
        let kept = vector(VectorWork::Filter { comparison: VectorComparison::LESS, operand: 1 });
        let Some(Effect::Bytes(bytes)) = kept.effect(&[0xff, 1, 0, 7]) else { panic!() };
        assert_eq!(*bytes, [0xff, 0], "-1 and 0");
        let least = vector(VectorWork::Reduce { function: VectorFunction::MIN, initial: 5 });
        assert!(matches!(least.effect(&[3, 0x80]), Some(Effect::Element(0x80))), "-128");
        let wide = Vector { element: ElementCode::U16, ..least };
        assert!(wide.effect(&[1, 2, 3]).is_none());
    }
}
