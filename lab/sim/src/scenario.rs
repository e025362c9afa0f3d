//! The meaning of one seed: the setup of the target and its hosts, their actions and the faults.
//!
//! Every seed has its own swarm of faults: most kinds are off in most runs, so that those that are on get far.

mod blocks;
mod bounds;
mod clocks;
mod disk;
mod fault;
mod hosts;
mod load;
mod network;
mod rates;
mod second;
mod separate;
mod target;
mod trust;

use std::net::SocketAddr;

use proto::WINDOW_COUNT_MAX;
use proto::host_namespaces::NamespaceInfo;
use subsystem::config::TlsPolicy;
use subsystem::limits::Limits;
use wire::id::Nsid;
use wire::pdu::{DataAlignment, Digests};

pub(crate) use self::blocks::FirstScenario;
pub(crate) use self::clocks::WALL_AHEAD_S;
pub(crate) use self::disk::DiskSettings;
pub(crate) use self::fault::{ErrorOf, Fault};
use self::hosts::HostScenario;
use self::load::{LoadScenario, Mix};
use self::network::NetworkSettings;
use self::rates::RateScenario;
use self::second::SecondScenario;
pub(crate) use self::separate::SeparateSettings;
use self::target::TargetScenario;
use self::trust::SecurityScenario;
use crate::coverage::{Waiting, WireLimits};
use crate::pair_settings::PairSettings;
use crate::random::Random;

/// A command by its host, its lane there and its place among the commands of the lane.
pub type CommandId = [u64; 3];

/// ns.
pub(crate) const US: u64 = 1000;
/// ns.
pub(crate) const MS: u64 = 1_000_000;
/// ns.
pub(crate) const SECOND: u64 = 1_000_000_000;
/// The step to which the target rounds deadlines up, ns.
pub(crate) const TIMER_STEP_NS: u64 = SECOND / 4;

/// A reactor's pool, unless it is to be scarce, bytes.
pub(crate) const POOL_BYTES: usize = 4 << 20;

/// The least pool of a reactor with a log, bytes.
const POOL_BYTES_OF_LOG: usize = 1 << 20;

/// The least pieces in which values of several chunks move, bytes.
const PIECE_BYTES_OF_CHUNKS: usize = 16 << 10;

/// The most that one command moves, bytes.
const TRANSFER_BYTES_MAX: u64 = 256 << 10;

/// The highest namespace id of a run.
const NSID_MAX_MIN: u64 = 9;

/// One run of this number has a host with separate queues.
const SEPARATE_ONE_IN: u64 = 6;

/// One run of this number is long.
const LONG_ONE_IN: u64 = 200;

/// Everything that a seed decides in advance.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    /// Seed of the chance events of the run.
    pub(crate) chance: u64,
    /// Both ends learn of the end of a connection soon, so that no write of an old association may meet a new one.
    pub(crate) is_prompt: bool,
    pub(crate) target: TargetScenario,
    pub(crate) hosts: HostScenario,
    pub(crate) security: SecurityScenario,
    pub(crate) load: LoadScenario,
    pub(crate) first: FirstScenario,
    pub(crate) second: SecondScenario,
    /// The key-value namespace.
    pub(crate) pairs: Option<PairSettings>,
    /// A host with separate queues.
    pub(crate) separate: Option<SeparateSettings>,
    pub(crate) network: NetworkSettings,
    pub(crate) disk: DiskSettings,
    pub(crate) rates: RateScenario,
    /// Events, by the number of commands submitted before.
    pub(crate) faults: Vec<(u64, Fault)>,
    /// Power cuts wait for the next flush or durable write that is answered.
    pub(crate) cuts_at_answers: bool,
    /// The run ends with a power cut, after a flush, and a look at every block.
    pub(crate) ends_with_power_cut: bool,
}

/// A rate in millionths, in one of this number of runs.
fn rate(r: &mut Random, of: u64, low: u64, high: u64) -> u32 {
    if r.one_in(of) { u32::try_from(r.scaled(low, high)).expect("a rate") } else { 0 }
}

impl Scenario {
    /// Draws a scenario. The order of the draws is part of what a seed means.
    pub(crate) fn new(seed: u64) -> Self {
        let mut scenario = Self::draw_plain(seed);
        scenario.draw_more();
        scenario.draw_rest();
        scenario.draw_discovery();
        scenario.draw_paths();
        scenario.draw_leaver();
        scenario.draw_limits();
        scenario.draw_admin();
        scenario.draw_machines();
        scenario.draw_reloads();
        scenario.draw_rights();
        scenario.draw_takeovers();
        scenario.draw_grains();
        scenario.draw_cables();
        scenario.draw_blocks();
        scenario.draw_refusals();
        scenario.draw_length();
        scenario.draw_pairs();
        scenario.draw_authentication();
        scenario.draw_controllers();
        scenario.draw_admission();
        scenario.draw_tls();
        scenario.draw_separate();
        scenario.draw_rates();
        scenario.draw_lba_status();
        scenario.hosts.follows_partitions = Random::new(seed, 94).one_in(2);
        scenario.load.lane_command_count =
            scenario.load.command_count.div_ceil(scenario.hosts.lane_count_of_all());
        scenario
    }

    /// What every run has, drawn from one stream.
    fn draw_plain(seed: u64) -> Self {
        let mut random = Random::new(seed, 1);
        let r = &mut random;
        let is_prompt = r.one_in(3);
        let first = FirstScenario::draw(r);
        let mut load = LoadScenario::draw(r, first.block_bytes, first.block_count);
        // The least that every command can end with: a Compare takes two buffers at once, and room is left for a
        // capsule.
        let transfer_bytes = transfer_limit(u64::from(load.blocks_max) * u64::from(first.block_bytes));
        let security = SecurityScenario::draw(r);
        let corrupt = if security.digests == Digests::all() { rate(r, 2, 100, 20_000) } else { 0 };
        load.draw_count(r);
        let network = NetworkSettings::draw(r, is_prompt, corrupt);
        let disk = DiskSettings::draw(r);
        load.mix = Mix::draw(r);
        let reactor_count = r.between(1, 3) as u16;
        let mut hosts = HostScenario::draw(r);
        let mut target = TargetScenario::draw(r, seed, reactor_count, transfer_bytes);
        hosts.draw_timeouts(r, is_prompt);
        target.draw_pool(r);
        load.draw_think_time(r);
        target.draw_threads(r, is_prompt);
        let mut scenario = Self {
            seed,
            chance: seed,
            is_prompt,
            target,
            hosts,
            security,
            load,
            ends_with_power_cut: !first.is_memory && r.one_in(2),
            first,
            second: SecondScenario::default(),
            pairs: None,
            separate: None,
            network,
            disk,
            rates: RateScenario::default(),
            faults: Vec::new(),
            cuts_at_answers: false,
        };
        scenario.draw_faults(r);
        scenario.target.draw_zero_copy(r);
        scenario
    }

    /// Hosts of the discovery service, and changes of its log. The other draws stay the same.
    fn draw_discovery(&mut self) {
        let mut random = Random::new(self.seed, 7);
        let r = &mut random;
        if !r.one_in(3) {
            return;
        }
        self.hosts.scout_count = r.between(1, 3) as usize;
        let change_count = if r.one_in(4) { 0 } else { r.scaled(1, 40) };
        // Those who change much at a time change it before it is read.
        let rush = r.one_in(3).then(|| r.below(self.load.command_count));
        for _ in 0..change_count {
            let at = rush.unwrap_or_else(|| r.below(self.load.command_count));
            self.faults.push((at, Fault::Offer { step_count: r.scaled(1, 8) as u8 }));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// A host that comes and goes; it knows no digests, so nothing may be damaged on the way. Again, the others stay
    /// what they were.
    fn draw_leaver(&mut self) {
        let mut random = Random::new(self.seed, 11);
        self.hosts.has_leaver = random.one_in(4) && self.network.corrupt == 0;
        let mut random = Random::new(self.seed, 81);
        if self.hosts.has_leaver && random.one_in(2) {
            let count = random.between(1, 6);
            self.add_faults(&mut random, count, |_| Fault::SpaceLow);
        }
    }

    /// A host with separate queues, which speaks no TLS, and room for it. Again, the others stay what they were.
    fn draw_separate(&mut self) {
        let mut random = Random::new(self.seed, 91);
        let r = &mut random;
        if !r.one_in(SEPARATE_ONE_IN)
            || self.is_long()
            || !matches!(self.security.tls, TlsPolicy::Off | TlsPolicy::Allowed)
        {
            return;
        }
        let settings = SeparateSettings::new(r, self);
        let (limits, free) = (&mut self.target.limits, Limits::default());
        let connection_count = 1 + u32::from(settings.queue_count);
        let connections = limits.connection_count_max + connection_count;
        limits.connection_count_max = connections.min(free.connection_count_max);
        let per_address = limits.connection_count_per_address_max;
        let per_address = match self.hosts.shares_address {
            true => per_address + connection_count,
            false => per_address.max(connection_count + 1),
        };
        limits.connection_count_per_address_max = per_address.min(free.connection_count_per_address_max);
        limits.controller_count_max = (limits.controller_count_max + 1).min(free.controller_count_max);
        limits.io_queue_count_max = limits.io_queue_count_max.max(settings.queue_count);
        self.separate = Some(settings);
    }

    /// Small limits of the protocol, which cut transfers into many PDUs, and of single commands. Again, the others stay
    /// what they were.
    fn draw_limits(&mut self) {
        let mut random = Random::new(self.seed, 12);
        let r = &mut random;
        let limits = &mut self.target.limits;
        if !r.one_in(4) {
            limits.window_bytes_max = r.scaled(4 << 10, 32 << 10) as u32 & !3;
            limits.window_count_max = r.between(1, WINDOW_COUNT_MAX as u64) as u8;
        }
        if !r.one_in(3) {
            limits.h2c_data_bytes_max = r.scaled(4 << 10, 16 << 10) as u32 & !3;
        }
        if !r.one_in(3) {
            self.target.c2h_data_bytes = r.scaled(512, 16 << 10) as u32 & !3;
        }
        if r.one_in(4) {
            let alignment = |r: &mut Random| DataAlignment::from_raw(r.below(32) as u8).unwrap_or_default();
            self.hosts.alignment = alignment(r);
            if !self.hosts.has_leaver {
                limits.data_alignment = alignment(r);
            }
        }
        if r.one_in(2) {
            limits.compare_and_write_blocks_max = r.between(1, self.load.blocks_max.into()) as u32;
        }
        if r.one_in(2) {
            limits.write_zeroes_bytes_max = r.scaled(u64::from(self.first.block_bytes).max(4096), 1 << 20);
        }
        if r.one_in(2) {
            limits.copy_range_count_max = r.between(1, 4) as u16;
            limits.copy_range_blocks_max = r.scaled(1, 64) as u16;
            limits.copy_blocks_max = r.scaled(limits.copy_range_blocks_max.into(), 256) as u32;
        }
        let mut weight = |of: u64, high: u64| if r.one_in(of) { 1 + r.below(high) as u32 } else { 0 };
        (self.load.mix.flush_all, self.load.mix.hint, self.load.mix.refused) =
            (weight(3, 10), weight(3, 5), weight(3, 8));
    }

    /// Get LBA Status of a disk.
    fn draw_lba_status(&mut self) {
        let mut random = Random::new(self.seed, 98);
        if !self.first.is_memory && random.one_in(2) {
            self.load.mix.lba_status = random.between(2, 12) as u32;
        }
    }

    /// Admin commands, controllers that are reset, and hosts that are silent for longer than their keep-alive allows.
    fn draw_admin(&mut self) {
        let mut random = Random::new(self.seed, 13);
        let r = &mut random;
        if r.one_in(2) {
            let count = r.scaled(1, 16);
            self.add_faults(r, count, |r| Fault::Admin { which: r.below(256) as u8 });
        }
        if r.one_in(6) {
            let count = r.between(1, 3);
            self.add_faults(r, count, |_| Fault::ControllerReset);
        }
        if !self.is_prompt && r.one_in(4) {
            let count = r.between(1, 3);
            self.add_faults(r, count, |r| Fault::Freeze { ns: r.scaled(SECOND, 30 * SECOND) });
        }
    }

    /// Calls that the kernel of the target's machine refuses.
    fn draw_refusals(&mut self) {
        let mut random = Random::new(self.seed, 72);
        if !self.is_prompt && random.one_in(4) {
            self.target.refusals = random.scaled(500, 50_000) as u32;
        }
    }

    /// Whether this run is a long one.
    fn is_long(&self) -> bool {
        Random::new(self.seed, 14).one_in(LONG_ONE_IN)
    }

    /// Some runs are long, with many hosts and more faults of the same kinds.
    fn draw_length(&mut self) {
        let mut random = Random::new(self.seed, 14);
        let r = &mut random;
        if !r.one_in(LONG_ONE_IN) {
            return;
        }
        let command_count = r.between(3000, 10_000);
        self.hosts.count = r.between(3, 8) as usize;
        for (at, _) in &mut self.faults {
            *at = *at * command_count / self.load.command_count;
        }
        for (_, fault) in self.faults.repeat(r.between(0, 3) as usize) {
            self.faults.push((r.below(command_count), fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
        self.load.command_count = command_count;
    }

    /// A key-value namespace with clients of its own, whose commands are as many as those on blocks.
    fn draw_pairs(&mut self) {
        // The memcached protocol has no digests, so a bit error would be a wrong value.
        if self.network.corrupt == 0 {
            self.pairs = PairSettings::draw(self.seed, self.target.reactor_count.into());
        }
        if let Some(pairs) = &mut self.pairs {
            let command_count = self.load.command_count.min(pairs.command_count_max());
            let factor = pairs.command_factor();
            for (at, _) in &mut self.faults {
                *at = factor * *at * command_count / self.load.command_count;
            }
            self.load.command_count = 2 * factor * command_count;
            pairs.client_command_limit = self.load.command_count;
            // The log reads and writes pieces of 256 KiB.
            self.target.pool_bytes = self.target.pool_bytes.max(POOL_BYTES_OF_LOG);
            if pairs.has_chunks() {
                self.target.pool_bytes = self.target.pool_bytes.max(POOL_BYTES);
                // Long values move in pieces that are not too many.
                let (network, limits) = (&mut self.network, &mut self.target.limits);
                network.piece_max = network.piece_max.max(PIECE_BYTES_OF_CHUNKS);
                network.capacity = network.capacity.max(8 * PIECE_BYTES_OF_CHUNKS);
                limits.window_bytes_max = limits.window_bytes_max.max(PIECE_BYTES_OF_CHUNKS as u32);
                limits.h2c_data_bytes_max = limits.h2c_data_bytes_max.max(PIECE_BYTES_OF_CHUNKS as u32);
                self.target.c2h_data_bytes = self.target.c2h_data_bytes.max(PIECE_BYTES_OF_CHUNKS as u32);
            }
        }
        let mut random = Random::new(self.seed, 44);
        if self.pairs.is_some() && random.one_in(3) {
            let count = random.between(1, 4);
            self.add_faults(&mut random, count, |r| Fault::Memory { share: r.below(256) as u8 });
        }
        let mut random = Random::new(self.seed, 41);
        if self.pairs.as_ref().is_some_and(|pairs| pairs.file_bytes() > 0) && random.one_in(3) {
            let count = random.between(1, 3);
            self.add_faults(&mut random, count, |r| Fault::NoSpace { ns: r.scaled(MS, 10 * SECOND) });
        }
        let mut random = Random::new(self.seed, 45);
        if self.pairs.as_ref().is_some_and(|pairs| pairs.file_bytes() > 0) && random.one_in(3) {
            let count = random.between(1, 2);
            let errors = [ErrorOf::Write, ErrorOf::Write, ErrorOf::Read, ErrorOf::Flush];
            self.add_faults(&mut random, count, |r| Fault::LogError { of: r.pick(&errors) });
        }
        self.draw_clocks();
    }

    /// Operations that are stuck or slow, other names, hosts that are not allowed. Again, the others stay what they
    /// were.
    fn draw_rest(&mut self) {
        let mut random = Random::new(self.seed, 6);
        let r = &mut random;
        if !self.first.is_memory && r.one_in(6) {
            self.disk.stuck = r.scaled(500, 20_000) as u32;
        }
        if self.second.spec.is_some() && r.one_in(4) {
            let count = r.between(1, 3);
            self.add_faults(r, count, |_| Fault::Rename);
        }
        if self.hosts.count > 1 && r.one_in(4) {
            let count = r.between(1, 3);
            self.add_faults(r, count, |r| Fault::Bar { away_ns: r.scaled(US, 5 * SECOND) });
        }
        self.cuts_at_answers = r.one_in(2);
        if r.one_in(2) {
            self.disk.flush_ns = r.scaled(100 * US, 10 * MS);
        }
    }

    /// Another machine that answers at the target's address for a while. A host that begins anew there would know that
    /// one's storage.
    fn draw_machines(&mut self) {
        let mut random = Random::new(self.seed, 15);
        let r = &mut random;
        if self.bars() || !r.one_in(8) {
            return;
        }
        let (count, may_cut_power) = (r.between(1, 2), !self.is_prompt && !self.first.is_memory);
        self.add_faults(r, count, |r| {
            let is_power_cut = may_cut_power && r.one_in(2);
            let (down_ns, away_ns) = (r.scaled(MS, 2 * SECOND), r.scaled(10 * MS, 20 * SECOND));
            Fault::FailOver { is_power_cut, down_ns, away_ns }
        });
    }

    /// Reloads of the configuration with other changes than those above.
    fn draw_reloads(&mut self) {
        let mut random = Random::new(self.seed, 16);
        let r = &mut random;
        if r.one_in(4) {
            let count = r.scaled(1, 12);
            self.add_faults(r, count, |r| Fault::Reload { which: r.below(256) as u8 });
        }
    }

    /// Two targets on one storage, and writes that go on when the first is killed.
    fn draw_takeovers(&mut self) {
        let mut random = Random::new(self.seed, 17);
        let r = &mut random;
        self.target.writes_outlive_kill = r.one_in(2);
        self.target.kills_at_writes =
            self.target.writes_outlive_kill && !self.first.is_memory && Random::new(self.seed, 42).one_in(2);
        if r.one_in(8) {
            let count = r.between(1, 3);
            let kills = |r: &mut Random| (!r.one_in(4)).then(|| r.scaled(MS, 4 * SECOND));
            self.add_faults(r, count, |r| Fault::Rival { kills_after_ns: kills(r) });
        }
    }

    /// Pages of the kernel, and the preferences of the storage.
    fn draw_grains(&mut self) {
        let mut random = Random::new(self.seed, 18);
        let r = &mut random;
        self.first.page_bytes = r.pick(&[4 << 10, 4 << 10, 16 << 10, 64 << 10]);
        self.first.write_grain_bytes = r.pick(&[512, 4 << 10, 16 << 10, 64 << 10, 1 << 20]);
        self.first.deallocate_grain_bytes = r.pick(&[512, 4 << 10, 64 << 10, 1 << 20, 32 << 20]);
    }

    /// Cables that are pulled while commands wait.
    fn draw_cables(&mut self) {
        let mut random = Random::new(self.seed, 19);
        let r = &mut random;
        if !self.is_prompt && r.one_in(4) {
            let count = r.between(1, 3);
            self.add_faults(r, count, |r| Fault::Unplug { waiting: r.pick(&Waiting::OF_IO) });
        }
    }

    /// As many controllers as there are hosts, or one more: a host that has lost its own may find none left, until the
    /// target has noticed that.
    fn draw_controllers(&mut self) {
        let mut random = Random::new(self.seed, 43);
        if random.one_in(6) {
            let needed = self.hosts.count + self.hosts.scout_count + usize::from(self.hosts.has_leaver);
            self.target.limits.controller_count_max = needed + random.below(2) as usize;
        }
    }

    /// NVMe connections of all hosts.
    fn connection_count(&self) -> usize {
        self.hosts.count * (1 + usize::from(self.hosts.lane_count))
            + self.hosts.scout_count
            + usize::from(self.hosts.has_leaver)
    }

    /// Limits on connections, controllers and queues that hosts just keep, timeouts of peers, and peers that open
    /// connections and say nothing, which meet these limits.
    fn draw_admission(&mut self) {
        let mut random = Random::new(self.seed, 61);
        let r = &mut random;
        self.hosts.shares_address = r.one_in(3);
        let (all, of_host) = (self.connection_count(), 1 + usize::from(self.hosts.lane_count));
        let of_address = if self.hosts.shares_address { all } else { of_host };
        let limits = &mut self.target.limits;
        if r.one_in(4) {
            limits.connection_count_max = (all as u64 + r.below(3)) as u32;
        }
        if r.one_in(4) {
            limits.connection_count_per_address_max = (of_address as u64 + r.below(2)).max(2) as u32;
        }
        if r.one_in(3) {
            limits.unconnected_count_max = r.between(16, 24) as u32;
        }
        if r.one_in(6) {
            // Hosts of the discovery service have the names of the others.
            let of_host = if self.hosts.scout_count > 0 { 2 } else { 1 };
            limits.controller_count_per_host_max = of_host + r.below(2) as usize;
        }
        if r.one_in(3) {
            limits.queue_entries_max = r.between(if self.hosts.has_leaver { 32 } else { 16 }, 40) as u16;
        }
        if r.one_in(3) {
            limits.io_queue_count_max = self.hosts.lane_count + r.below(2) as u16;
        }
        if r.one_in(3) {
            limits.abort_count_max = r.between(1, 4) as u16;
        }
        if r.one_in(3) {
            limits.nsid_max = r.between(NSID_MAX_MIN, 64) as u32;
        }
        if r.one_in(4) {
            limits.old_lane_wait_ms = r.scaled(1, 10_000);
            limits.twin_wait_ms = r.scaled(1, 3000);
        }
        if r.one_in(3) {
            self.target.timeouts.connect_ms = r.between(4000, 10_000);
            self.target.timeouts.pdu_ms = r.between(2000, 30_000);
            self.target.timeouts.send_ms = r.between(2000, 10_000);
            self.target.timeouts.data_ms = r.between(2000, 30_000);
            self.target.timeouts.contended_ms = r.between(500, 2000);
        }
        if r.one_in(5) {
            let flood_count = r.between(1, 3);
            self.add_faults(r, flood_count, |r| {
                let ns = r.scaled(10 * MS, 20 * SECOND);
                Fault::Flood { count: r.between(4, 40) as u8, ns }
            });
        }
    }

    /// The limits of a connection.
    pub(crate) fn wire_limits(&self) -> WireLimits {
        let limits = &self.target.limits;
        WireLimits {
            in_capsule_bytes: limits.in_capsule_bytes,
            transfer_bytes: limits.transfer_bytes_max,
            parts_max: {
                let bytes = self.second.block_count * u64::from(self.second.block_bytes);
                bytes / u64::from(limits.transfer_bytes_max) + 2
            },
            window_bytes: limits.window_bytes_max,
            window_count: limits.window_count_max.into(),
            c2h_data_bytes: self.target.c2h_data_bytes,
            abort_count: limits.abort_count_max.into(),
            io_queue_count: limits.io_queue_count_max.into(),
            queue_entries: limits.queue_entries_max.into(),
            is_short_of_controllers: limits.controller_count_max < Limits::default().controller_count_max,
            ..WireLimits::default()
        }
    }

    /// Blocks of the first namespace in a grain of its storage.
    pub(crate) fn grain_blocks(&self, grain_bytes: u32) -> u32 {
        (grain_bytes / self.first.block_bytes).max(1)
    }

    /// The sizes that a namespace must report as preferred for writes, and for deallocation, blocks.
    pub(crate) fn preferred_blocks(&self, info: &NamespaceInfo) -> (u32, u32) {
        if info.nsid == Nsid::new(1) && !self.first.is_memory {
            return (
                self.grain_blocks(self.first.write_grain_bytes),
                self.grain_blocks(self.first.deallocate_grain_bytes),
            );
        }
        let block_bytes =
            info.geometry.as_ref().map_or(self.first.block_bytes, |geometry| geometry.lba_bytes);
        (1, (self.first.page_bytes as u32 / block_bytes).max(1))
    }

    /// The address of a host's thread.
    pub(crate) fn address(&self, thread: usize) -> SocketAddr {
        let of_hosts = thread.saturating_sub(self.target.reactor_count.into())
            / (1 + usize::from(self.hosts.lane_count));
        let host = match of_hosts {
            _ if self.hosts.shares_address => 1,
            host if host < self.hosts.count => 2 + host as u8,
            _ => 64 + (thread % 128) as u8,
        };
        ([192, 0, 2, host], 4000).into()
    }

    /// Disks of all machines.
    pub(crate) fn disk_count(&self) -> usize {
        let fails_over = |(_, fault): &(u64, Fault)| matches!(fault, Fault::FailOver { .. });
        if self.faults.iter().any(fails_over) { 2 } else { 1 }
    }

    /// Bytes of a block of the model.
    pub(crate) fn block_bytes_at(&self, lba: u64) -> u32 {
        if lba < self.first.block_count { self.first.block_bytes } else { self.second.block_bytes }
    }

    /// Blocks that one command moves at most in the namespace that has a block of the model.
    pub(crate) fn blocks_max_at(&self, lba: u64) -> u32 {
        (self.load.blocks_max * self.first.block_bytes / self.block_bytes_at(lba)).max(1)
    }

    /// Blocks of both namespaces.
    pub(crate) fn all_block_count(&self) -> u64 {
        self.first.block_count + self.second.block_count
    }

    /// Whether a host is not always allowed.
    pub(crate) fn bars(&self) -> bool {
        self.faults.iter().any(|(_, fault)| matches!(fault, Fault::Bar { .. }))
    }

    fn draw_faults(&mut self, r: &mut Random) {
        let mut kinds: Vec<u32> = vec![0, 3, 5];
        if !self.is_prompt {
            kinds.extend([1, 2]);
        }
        if !self.first.is_memory {
            kinds.push(4);
        }
        kinds.push(7);
        if r.one_in(4) {
            kinds.push(6);
        }
        // The swarm: about half of them are on.
        kinds.retain(|_| r.one_in(2));
        if kinds.is_empty() || r.one_in(6) {
            return;
        }
        let (count, is_prompt, block_count) = (r.scaled(1, 12), self.is_prompt, self.first.block_count);
        self.add_faults(r, count, |r| {
            let down_ns = r.scaled(MS, 20 * SECOND);
            match r.pick(&kinds) {
                0 => Fault::Reset,
                1 => Fault::Cut,
                2 => Fault::Partition { ns: r.scaled(MS, 30 * SECOND) },
                3 => Fault::Kill { down_ns },
                4 => Fault::PowerCut { down_ns },
                5 => {
                    Fault::Stall { ns: if is_prompt { r.scaled(US, MS) } else { r.scaled(MS, 15 * SECOND) } }
                }
                6 => Fault::Resize { block_count: r.between(4, block_count) },
                _ => Fault::Cancel,
            }
        });
    }

    /// Adds this number of faults, each at some command.
    fn add_faults(&mut self, r: &mut Random, count: u64, draw: impl Fn(&mut Random) -> Fault) {
        for _ in 0..count {
            let fault = draw(r);
            self.faults.push((r.below(self.load.command_count), fault));
        }
        self.sort_faults();
    }

    /// The draws of one command stay in their order.
    fn sort_faults(&mut self) {
        self.faults.sort_by_key(|(at, _)| *at);
    }
}

/// The smallest limit that allows transfers of this number of bytes.
fn transfer_limit(bytes: u64) -> u64 {
    bytes.next_power_of_two().max(16 << 10)
}
