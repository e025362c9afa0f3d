//! The samples of a target's threads as a message, of bounded size.

use serde::{Deserialize, Serialize};

use crate::profile::{Layer, Placed, Sampled, Scope};

/// Functions of a layer that are named; the samples of the others are one number.
const FUNCTIONS_MAX: usize = 100;

/// Name of these others.
const OTHERS: &str = "[other functions]";

/// Longest name of a function, and longest reason, characters.
const NAME_CHARS_MAX: usize = 250;
const LIMIT_CHARS_MAX: usize = 500;

/// Reasons why samples have no name.
const LIMITS_MAX: usize = 16;

/// Samples of one measurement: more than 2,000 processors take in its 10 minutes.
const COUNT_MAX: u64 = 1 << 33;

/// Samples of a target's threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SentSamples {
    /// The scope that the server's kernel permits.
    scope: Scope,
    /// Samples for which there was no room.
    lost: u64,
    /// Layer, function and number of samples.
    functions: Vec<(Layer, String, u64)>,
    /// Why some samples have no name.
    limits: Vec<String>,
}

impl SentSamples {
    pub(super) fn of(sampled: &Sampled) -> Self {
        let placed = &sampled.placed;
        let functions = Layer::ALL.into_iter().flat_map(|layer| {
            let all = placed.functions(layer);
            let (named, others) = all.split_at(all.len().min(FUNCTIONS_MAX));
            let others: u64 = others.iter().map(|(_, count)| count).sum();
            let named =
                named.iter().map(move |(name, count)| (layer, beginning(name, NAME_CHARS_MAX), *count));
            named.chain((others > 0).then(|| (layer, OTHERS.to_owned(), others))).collect::<Vec<_>>()
        });
        let limits = sampled.limits.iter().take(LIMITS_MAX).map(|limit| beginning(limit, LIMIT_CHARS_MAX));
        Self {
            scope: sampled.scope,
            lost: sampled.lost,
            functions: functions.collect(),
            limits: limits.collect(),
        }
    }

    /// The samples; `None` if there are more than a measurement can have.
    pub(super) fn into_sampled(self) -> Option<Sampled> {
        let Self { scope, lost, functions, limits } = self;
        let counts = functions.iter().map(|(_, _, count)| *count).chain([lost]);
        let total = counts.fold(0_u64, u64::saturating_add);
        if total > COUNT_MAX {
            return None;
        }
        let mut placed = Placed::default();
        for (layer, name, count) in functions {
            placed.add(layer, &name, count);
        }
        Some(Sampled { placed, scope, lost, limits })
    }
}

fn beginning(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(placed: Placed) -> Sampled {
        Sampled { placed, scope: Scope::User, lost: 3, limits: vec!["the kernel hides names".to_owned()] }
    }

    #[test]
    fn samples_arrive_as_they_were_sent() {
        let mut placed = Placed::default();
        placed.add(Layer::Nvme, "nvlane_subsystem::lane::turn", 7);
        placed.add(Layer::SystemCalls, "do_syscall_64", 2);
        let sampled = sampled(placed);
        let text = serde_json::to_string(&SentSamples::of(&sampled)).unwrap();
        assert_eq!(
            text,
            r#"{"scope":"user","lost":3,"functions":[["nvme","nvlane_subsystem::lane::turn",7],["system_calls","do_syscall_64",2]],"limits":["the kernel hides names"]}"#
        );
        let sent: SentSamples = serde_json::from_str(&text).unwrap();
        assert_eq!(sent.into_sampled(), Some(sampled));
    }

    #[test]
    fn a_message_is_bounded_and_keeps_the_number_of_samples() {
        let mut placed = Placed::default();
        for index in 0..1000 {
            placed.add(Layer::Other, &format!("{index}{}", "é".repeat(5000)), 1 + index);
        }
        let many = Sampled { limits: vec!["x".repeat(5000); 50], ..sampled(placed.clone()) };
        let sent = SentSamples::of(&many);
        assert_eq!((sent.functions.len(), sent.limits.len()), (101, 16));
        assert!(serde_json::to_string(&sent).unwrap().len() < 100 << 10);
        let received = sent.into_sampled().unwrap().placed;
        assert_eq!((received.total(), received.count(Layer::Other)), (placed.total(), placed.total()));
        assert_eq!(received.functions(Layer::Other)[0].0, OTHERS);
    }

    #[test]
    fn more_samples_than_a_measurement_has_are_refused() {
        let sent = |counts: &[u64], lost| SentSamples {
            scope: Scope::All,
            lost,
            functions: counts.iter().map(|count| (Layer::Copies, "memmove".to_owned(), *count)).collect(),
            limits: Vec::new(),
        };
        assert!(sent(&[u64::MAX, u64::MAX], 0).into_sampled().is_none());
        assert!(sent(&[1], u64::MAX).into_sampled().is_none());
        assert_eq!(sent(&[1, 2], 4).into_sampled().unwrap().placed.total(), 3);
    }
}
