//! The pools of a target: their space, as last seen, and what the log says of it.

use store::Size;
use subsystem::config::{PoolConfig, PoolState};
use subsystem::operator::{ChangeOutcome, Report, ReportLine};

/// The pools.
#[derive(Default)]
pub(super) struct Pools {
    configs: Vec<PoolConfig>,
    states: Vec<PoolState>,
}

impl Pools {
    pub(super) fn new(configs: &[PoolConfig]) -> Self {
        Self { configs: configs.to_vec(), states: Vec::new() }
    }

    pub(super) fn has_any(&self) -> bool {
        !self.configs.is_empty()
    }

    /// As at the last look.
    pub(super) fn states(&self) -> &[PoolState] {
        &self.states
    }

    /// Why pools that are to be added, or have another directory, cannot be used.
    pub(super) fn refusals(&self, wanted: &[PoolConfig]) -> Vec<ReportLine> {
        let is_new = |pool: &&PoolConfig| {
            !self.configs.iter().any(|known| (&known.name, &known.directory) == (&pool.name, &pool.directory))
        };
        let refusal = |pool: &PoolConfig| {
            let error = pool.state().error?;
            let text = format!("add pool {}: not done, {error}", pool.name);
            Some(ReportLine { outcome: ChangeOutcome::Failed, text })
        };
        wanted.iter().filter(is_new).filter_map(refusal).collect()
    }

    /// Takes other pools. Returns what has changed.
    pub(super) fn follow(&mut self, wanted: &[PoolConfig]) -> Option<ReportLine> {
        if self.configs == wanted {
            return None;
        }
        self.configs = wanted.to_vec();
        let text = format!("change the pools: done, there are {}", wanted.len());
        Some(ReportLine { outcome: ChangeOutcome::Done, text })
    }

    /// Looks at their space. Returns what has changed since the last time.
    pub(super) fn look(&mut self) -> Report {
        let mut report = Report::default();
        let states = self.configs.iter().map(|config| {
            let mut state = config.state();
            let before = self.states.iter().find(|before| before.name == state.name);
            let (was_low, had_error) =
                before.map_or((false, None), |before| (before.is_low, before.error.clone()));
            // It is low until there is a tenth more than that: writes at the threshold are one event.
            let enough = state.space_low.saturating_add(state.space_low / 10);
            state.is_low |= was_low && state.error.is_none() && state.left < enough;
            let mut add = |outcome, text| report.lines.push(ReportLine { outcome, text });
            let PoolState { name, left, total, .. } = &state;
            match (&had_error, &state.error) {
                (None, Some(error)) => {
                    add(ChangeOutcome::Failed, format!("pool {name} cannot be used: {error}"));
                }
                (Some(_), None) => add(ChangeOutcome::Done, format!("pool {name} can be used again")),
                _ => {}
            }
            let space = format!("{} of {} are left", Size(*left), Size(*total));
            match (was_low, state.is_low) {
                (false, true) => {
                    let text = format!(
                        "pool {name} has little space left: {space}, less than space_low = {}",
                        config.space_low
                    );
                    add(ChangeOutcome::Failed, text);
                }
                (true, false) if state.error.is_none() => {
                    add(ChangeOutcome::Done, format!("pool {name} has space again: {space}"));
                }
                _ => {}
            }
            state
        });
        self.states = states.collect();
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_space_and_lost_directories_are_told_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("pool");
        std::fs::create_dir(&place).expect("made");
        let mut config: PoolConfig = format!("fast={}", place.display()).parse().expect("a pool");
        let mut pools = Pools::new(&[]);
        assert!(pools.refusals(std::slice::from_ref(&config)).is_empty());
        assert!(pools.follow(std::slice::from_ref(&config)).is_some());
        let texts = |pools: &mut Pools| {
            let lines = pools.look().lines;
            lines
                .into_iter()
                .map(|line| line.text.split(':').next().unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
        };
        config.space_low = "0%".parse().expect("a share");
        pools.follow(std::slice::from_ref(&config));
        assert_eq!(texts(&mut pools), [""; 0]);
        config.space_low = "1000T".parse().expect("a size");
        pools.follow(std::slice::from_ref(&config));
        assert_eq!(texts(&mut pools), ["pool fast has little space left"]);
        assert_eq!(texts(&mut pools), [""; 0], "once");
        config.space_low = "1".parse().expect("a size");
        pools.follow(std::slice::from_ref(&config));
        assert_eq!(texts(&mut pools), ["pool fast has space again"]);
        std::fs::remove_dir(&place).expect("removed");
        assert_eq!(texts(&mut pools), ["pool fast cannot be used"]);
        assert_eq!(texts(&mut pools), [""; 0], "once");
        config.name = "other".into();
        assert_eq!(pools.refusals(&[config]).len(), 1);
    }
}
