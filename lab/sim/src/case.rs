//! A run as data: a seed, and the rest of its commands, faults and settings.
//!
//! The rest of a failing run is printed as options, and read again from them: see [`Case::options`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::random::Random;
use crate::scenario::{CommandId, Scenario};
use crate::setting::{SETTINGS, Setting};

/// A seed's run, or a part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Case {
    pub(crate) seed: u64,
    /// Commands that are submitted: all without a list.
    pub(crate) commands: Option<BTreeSet<CommandId>>,
    /// Faults that happen, by their place in the scenario: all without a list.
    pub(crate) faults: Option<BTreeSet<usize>>,
    /// Settings that differ from those the seed draws.
    pub(crate) settings: BTreeMap<&'static str, u64>,
    /// Seed of the chance events; 0 for the seed's own chance.
    pub(crate) chance: u64,
}

impl Case {
    /// All of a seed's run.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Whether no option sets this setting to 0.
    #[must_use]
    pub fn has(&self, setting: &str) -> bool {
        self.settings.get(setting) != Some(&0)
    }

    /// Parses options: lists with commas, `none` for an empty one.
    pub fn parse(
        seed: u64,
        commands: Option<&str>,
        faults: Option<&str>,
        set: Option<&str>,
        chance: u64,
    ) -> Result<Self, String> {
        let command = |text: &str| {
            let numbers: Option<Vec<u64>> = text.split('.').map(|number| number.parse().ok()).collect();
            numbers
                .and_then(|numbers| numbers.try_into().ok())
                .ok_or(format!("{text} is no command: HOST.LANE.PLACE"))
        };
        let fault = |text: &str| text.parse().map_err(|_| format!("{text} is no fault: a number"));
        let setting = |text: &str| {
            let (name, value) = text.split_once('=').ok_or(format!("{text} is no setting: NAME=VALUE"))?;
            let setting = SETTINGS.iter().find(|setting| setting.name == name);
            let value = value.parse().map_err(|_| format!("{value} is no value of {name}"))?;
            Ok((setting.ok_or(format!("there is no setting {name}"))?.name, value))
        };
        Ok(Self {
            seed,
            commands: commands.map(|list| items(list, command)).transpose()?,
            faults: faults.map(|list| items(list, fault)).transpose()?,
            settings: set.map_or(Ok(BTreeMap::new()), |list| items(list, setting))?,
            chance,
        })
    }

    /// The options that run this case.
    #[must_use]
    pub fn options(&self) -> String {
        let mut options = format!("--seed {}", self.seed);
        let list = |items: Vec<String>| if items.is_empty() { "none".into() } else { items.join(",") };
        let mut option = |name: &str, items: Vec<String>| {
            write!(options, " {name} {}", list(items)).expect("a string");
        };
        if let Some(commands) = &self.commands {
            let text = |[host, lane, place]: &CommandId| format!("{host}.{lane}.{place}");
            option("--commands", commands.iter().map(text).collect());
        }
        if let Some(faults) = &self.faults {
            option("--faults", faults.iter().map(ToString::to_string).collect());
        }
        if !self.settings.is_empty() {
            option("--set", self.settings.iter().map(|(name, value)| format!("{name}={value}")).collect());
        }
        if self.chance > 0 {
            option("--chance", vec![self.chance.to_string()]);
        }
        options
    }

    /// The scenario of this case.
    pub(crate) fn scenario(&self) -> Scenario {
        let mut scenario = Scenario::new(self.seed);
        if let Some(kept) = &self.faults {
            let faults = std::mem::take(&mut scenario.faults).into_iter().enumerate();
            scenario.faults = faults.filter(|(at, _)| kept.contains(at)).map(|(_, fault)| fault).collect();
        }
        for Setting { name, set, .. } in SETTINGS {
            if let Some(value) = self.settings.get(name) {
                set(&mut scenario, *value);
            }
        }
        scenario.load.commands.clone_from(&self.commands);
        if self.chance > 0 {
            scenario.chance = Random::of(self.seed, 25, &[self.chance]).next();
        }
        scenario
    }
}

/// The items of a list.
fn items<T, L: FromIterator<T>>(list: &str, item: impl Fn(&str) -> Result<T, String>) -> Result<L, String> {
    list.split(',').filter(|text| *text != "none").map(item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_read_from_the_options_that_it_prints() {
        let set = "hosts=1,late-segments=0";
        let case = Case::parse(7, Some("0.1.2,3.0.15"), Some("none"), Some(set), 4).unwrap();
        assert_eq!(
            case.options(),
            "--seed 7 --commands 0.1.2,3.0.15 --faults none --set hosts=1,late-segments=0 --chance 4"
        );
        let scenario = case.scenario();
        assert!(scenario.faults.is_empty() && scenario.hosts.count == 1 && scenario.network.late == 0);
        assert_eq!(Case::parse(7, None, None, None, 0), Ok(Case::of(7)));
        for (commands, set) in [(Some("1.2"), None), (None, Some("hosts")), (None, Some("ghosts=1"))] {
            assert!(Case::parse(7, commands, None, set, 0).is_err(), "{commands:?} {set:?}");
        }
    }
}
