//! How the cores of a machine are divided between targets and load, for rows that need a core for each reactor.

/// The cores of targets and load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    /// One for each reactor.
    pub(crate) targets: Vec<usize>,
    /// Those of the load.
    pub(crate) load: Vec<usize>,
    /// Whether load and targets have cores in common.
    pub(crate) is_shared: bool,
}

impl Division {
    /// Divides the cores of this process; `None` if there is not one for each of `count` reactors.
    pub(crate) fn of(allowed: &[usize], count: usize) -> Option<Self> {
        let targets = allowed.get(allowed.len().checked_sub(count)?..)?.to_vec();
        let rest = &allowed[..allowed.len() - count];
        let load = if rest.len() >= count { rest } else { allowed };
        let is_shared = load.iter().any(|core| targets.contains(core));
        Some(Self { targets, load: load.to_vec(), is_shared })
    }

    /// The first cores of the targets' machine for the targets, those of this machine for the load.
    pub(crate) fn apart(far: &[usize], near: &[usize], count: usize) -> Option<Self> {
        Some(Self { targets: far.get(..count)?.to_vec(), load: near.to_vec(), is_shared: false })
    }
}

/// Which of these numbers of reactors share cores with the load, and for which there are too few, in sentences. `None`
/// before the number of cores is known. `whose`: what the reactors are of, "targets".
pub(crate) fn told(
    counts: &[u32],
    core_count: usize,
    place: &str,
    whose: &str,
    is_shared: impl Fn(u32) -> bool,
) -> Option<String> {
    let those = |is_meant: &dyn Fn(u32) -> bool| {
        let some = counts.iter().filter(|count| is_meant(**count)).map(u32::to_string);
        Some(some.collect::<Vec<_>>().join(", ")).filter(|some| !some.is_empty())
    };
    let mut told = format!("There are {core_count} cores{place}.");
    if let Some(shared) = those(&is_shared) {
        told += &format!(" With {shared} the load shares the cores of the {whose}.");
    }
    if let Some(missing) = those(&|count| count as usize > core_count) {
        told += &format!(" {missing}: n/a, because there are fewer cores.");
    }
    (core_count > 0).then_some(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_has_cores_of_its_own_where_there_are_enough() {
        let division = |allowed: &[usize], count| Division::of(allowed, count);
        let of = |targets: &[usize], load: &[usize]| {
            let is_shared = load.iter().any(|core| targets.contains(core));
            Some(Division { targets: targets.to_vec(), load: load.to_vec(), is_shared })
        };
        assert_eq!(division(&[0, 1], 1), of(&[1], &[0]));
        assert_eq!(division(&[0, 1], 2), of(&[0, 1], &[0, 1]));
        assert_eq!(division(&[0, 1], 4), None);
        assert_eq!(division(&[2, 3, 4, 5], 2), of(&[4, 5], &[2, 3]));
        assert_eq!(division(&[2, 3, 4, 5, 6, 7], 4), of(&[4, 5, 6, 7], &[2, 3, 4, 5, 6, 7]));
        assert!(division(&[0, 1], 2).unwrap().is_shared && !division(&[0, 1], 1).unwrap().is_shared);
        let apart = |count| Division::apart(&[0, 1], &[0, 1, 2], count);
        let expected = Division { targets: vec![0, 1], load: vec![0, 1, 2], is_shared: false };
        assert_eq!((apart(2), apart(4)), (Some(expected), None));
    }
}
