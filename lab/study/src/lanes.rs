//! Lanes over several associations, because a controller grants a limited number.

use std::time::Duration;

use host::{Address, Association, Completion, Lane, Namespace, Options};

use crate::experiment::Error;

/// Commands that each lane executes at once when it is exercised: reads of one block.
const COMMAND_COUNT: u16 = 8;

/// Lanes used by one thread.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub(crate) lanes: Vec<Lane<Vec<u8>>>,
    pub(crate) associations: Associations,
    /// Namespace of the lanes.
    pub(crate) namespace: Namespace,
}

/// Associations, closed on drop.
#[derive(Debug, Default)]
pub(crate) struct Associations(Vec<Association>);

impl Drop for Associations {
    fn drop(&mut self) {
        self.0.iter().for_each(Association::close);
    }
}

impl Lanes {
    /// Connects `count` lanes to the only namespace of a target.
    pub(crate) fn connect(address: &Address, count: usize, options: &Options) -> Result<Self, Error> {
        let mut associations = Associations::default();
        let mut lanes = Vec::with_capacity(count);
        let namespace = loop {
            let wanted = u16::try_from(count - lanes.len()).unwrap_or(u16::MAX);
            let association = Association::connect(address, options.clone().with_lanes(wanted))?;
            let granted = association.controller().queue_pairs.clamp(1, wanted.max(1));
            for _ in 0..granted.min(wanted) {
                lanes.push(association.lane()?);
            }
            let namespace = association.addressed_namespace()?;
            associations.0.push(association);
            if lanes.len() >= count {
                break namespace;
            }
        };
        Ok(Self { lanes, associations, namespace })
    }

    /// Connects the number of lanes of each class that the options give.
    pub(crate) fn connect_by_class(address: &Address, options: Options) -> Result<Self, Error> {
        let association = Association::connect(address, options)?;
        let lanes = association.lanes()?.into_lanes();
        let namespace = association.addressed_namespace()?;
        Ok(Self { lanes, associations: Associations(vec![association]), namespace })
    }

    /// Executes a few reads at once on each lane, so that both ends allocate the memory of a used lane.
    pub(crate) fn exercise(&mut self) -> Result<(), Error> {
        let mut buffers = vec![vec![0; self.namespace.lba_bytes() as usize]; COMMAND_COUNT.into()];
        for lane in &mut self.lanes {
            for user in 0..COMMAND_COUNT.min(lane.depth()) {
                let command = self.namespace.read(user.into(), 1).map_err(host::Error::Command)?;
                lane.submit(command, buffers.pop(), user.into())
                    .map_err(|refused| Error::Load(refused.to_string()))?;
            }
            while lane.outstanding() > 0 {
                let mut failure = None;
                let mut each = |done: Completion<Vec<u8>>| {
                    failure = failure.or(done.result.err());
                    buffers.extend(done.buffer);
                };
                let count = lane.wait_with(&mut each, Duration::from_secs(10));
                if count == 0 || failure.is_some() {
                    return Err(Error::Load("a lane does not answer".into()));
                }
            }
        }
        Ok(())
    }
}
