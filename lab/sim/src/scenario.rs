//! The meaning of one seed: the setup of the target and its hosts, their actions and the faults.
//!
//! Every seed has its own swarm of faults: most kinds are off in most runs, so that those that are on get far.

mod blocks;
mod bounds;
mod clocks;
mod fault;
mod separate;
mod trust;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use proto::WINDOW_COUNT_MAX;
use proto::host_namespaces::NamespaceInfo;
use proto::zero_copy::Policy as ZeroCopy;
use security::group::Group;
use subsystem::config::{TimeoutConfig, TlsPolicy};
use subsystem::limits::Limits;
use wire::id::Nsid;
use wire::pdu::{DataAlignment, Digests};

pub(crate) use self::blocks::BadBlocks;
pub(crate) use self::clocks::WALL_AHEAD_S;
pub(crate) use self::fault::{ErrorOf, Fault};
pub(crate) use self::separate::SeparateSettings;
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

/// The most that one command moves, bytes.
const TRANSFER_BYTES_MAX: u64 = 256 << 10;

/// The highest namespace id of a run.
const NSID_MAX_MIN: u64 = 9;

/// One run of this number has a host with separate queues.
const SEPARATE_ONE_IN: u64 = 6;

/// One run of this number is long.
const LONG_ONE_IN: u64 = 200;

/// Weight of each command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    pub(crate) read: u32,
    pub(crate) write: u32,
    pub(crate) durable_write: u32,
    pub(crate) flush: u32,
    pub(crate) write_zeroes: u32,
    pub(crate) deallocate: u32,
    pub(crate) compare: u32,
    pub(crate) compare_and_write: u32,
    pub(crate) verify: u32,
    pub(crate) copy: u32,
    /// A Flush of all namespaces.
    pub(crate) flush_all: u32,
    /// Dataset Management that only gives hints.
    pub(crate) hint: u32,
    /// Commands that must be refused.
    pub(crate) refused: u32,
}

/// Permanent behaviour of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkSettings {
    /// The shortest way, ns; each connection adds its own.
    pub(crate) latency_ns: u64,
    pub(crate) jitter_ns: u64,
    /// Bytes that may be on their way in one direction.
    pub(crate) capacity: usize,
    /// Maximum bytes of the pieces that sends are cut into.
    pub(crate) piece_max: usize,
    /// Pieces that arrive late, per million, and how late.
    pub(crate) late: u32,
    pub(crate) late_ns: u64,
    /// Sends that take less than would fit, per million.
    pub(crate) short: u32,
    /// Pieces with a wrong bit, per million.
    pub(crate) corrupt: u32,
}

/// Permanent behaviour of the disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskSettings {
    pub(crate) latency_ns: u64,
    pub(crate) jitter_ns: u64,
    /// Operations that take very long, per million, and how long.
    pub(crate) slow: u32,
    pub(crate) slow_ns: u64,
    /// Additional time of a flush, ns: much longer than that of a write, on many a disk.
    pub(crate) flush_ns: u64,
    /// Operations that never end by themselves, per million.
    pub(crate) stuck: u32,
    /// Operations that fail in passing, per million.
    pub(crate) passing: u32,
    /// Reads and writes that stop short, per million.
    pub(crate) short: u32,
    /// Reads that fail, per million.
    pub(crate) read_error: u32,
    /// Writes that fail, per million.
    pub(crate) write_error: u32,
    /// Flushes and durable writes that fail, per million.
    pub(crate) sync_error: u32,
    /// Whether ranges can be punched and zeroed.
    pub(crate) supports_ranges: bool,
    /// Operations that may run at once.
    pub(crate) limit: usize,
}

impl DiskSettings {
    /// This disk without failures for good, and without passing ones that are as frequent as to come to the same.
    pub(crate) fn without_errors(self) -> Self {
        let (passing, short) = (self.passing / 8, self.short / 8);
        Self { stuck: 0, passing, short, read_error: 0, write_error: 0, sync_error: 0, ..self }
    }
}

/// Everything that a seed decides in advance.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    /// Seed of the chance events of the run.
    pub(crate) chance: u64,
    pub(crate) reactor_count: u16,
    pub(crate) host_count: usize,
    pub(crate) lanes_per_host: u16,
    pub(crate) depth: u16,
    /// In RAM that outlives the target; on a disk otherwise.
    pub(crate) is_memory: bool,
    pub(crate) block_bytes: u32,
    pub(crate) block_count: u64,
    /// The LBA of the first block of the model: commands name no lower one.
    pub(crate) first_block: u64,
    pub(crate) bad: BadBlocks,
    /// Ranges that one deallocation names at most.
    pub(crate) deallocated_ranges_max: u64,
    /// A page of the kernel.
    pub(crate) page_bytes: usize,
    /// The grains that the storage below prefers for writes, and for deallocation.
    pub(crate) write_grain_bytes: u32,
    pub(crate) deallocate_grain_bytes: u32,
    pub(crate) blocks_max: u32,
    /// The second namespace in the words of a configuration: RAM that outlives the target, behind filters.
    pub(crate) second: Option<String>,
    /// Its blocks; 0 without it. In the model they follow those of the first.
    pub(crate) second_block_count: u64,
    pub(crate) second_block_bytes: u32,
    pub(crate) digests: Digests,
    /// R2Ts of a command that a host accepts at once.
    pub(crate) r2t_limit: u32,
    pub(crate) has_flow_control: bool,
    /// Limits of the target.
    pub(crate) limits: Limits,
    pub(crate) timeouts: TimeoutConfig,
    /// All hosts have one IP address.
    pub(crate) shares_address: bool,
    /// Data of one C2HData, bytes.
    pub(crate) c2h_data_bytes: u32,
    /// Alignment of data in PDUs to a host.
    pub(crate) host_alignment: DataAlignment,
    pub(crate) keep_alive_ms: u32,
    pub(crate) command_timeout_ns: u64,
    /// How long hosts hold commands whose namespace cannot be reached, ns.
    pub(crate) path_timeout_ns: u64,
    /// Writes are sent again after a reconnect.
    pub(crate) is_replayed: bool,
    /// Both ends learn of the end of a connection soon, so that no write of an old association may meet a new one.
    pub(crate) is_prompt: bool,
    /// Bytes of a reactor's pool that are left free.
    pub(crate) pool_bytes: usize,
    pub(crate) command_count: u64,
    /// Those of one lane.
    pub(crate) lane_command_count: u64,
    /// Those that are submitted: all without a list.
    pub(crate) commands: Option<BTreeSet<CommandId>>,
    pub(crate) think_ns: u64,
    pub(crate) mix: Mix,
    pub(crate) network: NetworkSettings,
    pub(crate) disk: DiskSettings,
    /// Threads that run late, per million wake-ups, and how late.
    pub(crate) late: u32,
    pub(crate) late_ns: u64,
    /// Threads of the target are held up now and then after they have read the clock, and act on an older time.
    pub(crate) has_old_clocks: bool,
    /// Events, by the number of commands submitted before.
    pub(crate) faults: Vec<(u64, Fault)>,
    /// Power cuts wait for the next flush or durable write that is answered.
    pub(crate) cuts_at_answers: bool,
    /// The run ends with a power cut, after a flush, and a look at every block.
    pub(crate) ends_with_power_cut: bool,
    /// Calls of the target that its kernel refuses, per million.
    pub(crate) refusals: u32,
    /// The target stops only once it has forgotten its peers.
    pub(crate) stops_late: bool,
    /// Writes that a killed target has given to the device go on without it.
    pub(crate) writes_outlive_kill: bool,
    /// Kills wait until such a write is under way.
    pub(crate) kills_at_writes: bool,
    /// Which answers the target sends without a copy.
    pub(crate) zero_copy: ZeroCopy,
    /// Hosts that keep a connection to the discovery service, and read its log.
    pub(crate) scout_count: usize,
    /// A host that comes and goes.
    pub(crate) has_leaver: bool,
    /// A host with separate queues.
    pub(crate) separate: Option<SeparateSettings>,
    /// Hosts authenticate with this group, and see the target's secret.
    pub(crate) authentication: Option<Group>,
    /// Interval at which they do so again, ms; 0 for once only.
    pub(crate) reauthenticate_ms: u32,
    /// Whether hosts and target speak TLS: those with even numbers, where it is allowed.
    pub(crate) tls: TlsPolicy,
    /// Attempts of each host to connect with a key that the target does not have, before those with the right one, and
    /// attempts without TLS before these, where TLS is required.
    pub(crate) other_key_count: u8,
    pub(crate) clear_count: u8,
    /// Sends before which a host changes its key of the connection, per million.
    pub(crate) key_updates: u32,
    /// The key-value namespace.
    pub(crate) pairs: Option<PairSettings>,
}

impl Scenario {
    #[allow(clippy::too_many_lines)] // One list of draws, whose order is part of what a seed means.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, 1);
        let r = &mut random;
        let is_prompt = r.one_in(3);
        let is_memory = r.one_in(4);
        let on = |r: &mut Random, of: u64, low: u64, high: u64| -> u32 {
            if r.one_in(of) { u32::try_from(r.scaled(low, high)).expect("a rate") } else { 0 }
        };
        let block_bytes = r.pick(&[512, 512, 512, 512, 4096, 4096, 4096, 1024, 2048, 8192, 16_384, 65_536]);
        let block_count = if r.one_in(3) { r.between(4, 8) } else { r.between(8, 96) };
        let blocks_max = if r.one_in(4) { r.between(1, 64) } else { r.between(1, 8) };
        let blocks_max = blocks_max.min(block_count).min(TRANSFER_BYTES_MAX / block_bytes);
        // The least that every command can end with: a Compare takes two buffers at once, and room is left for a
        // capsule.
        let transfer_bytes = transfer_limit(blocks_max * block_bytes);
        let digests =
            r.pick(&[Digests::empty(), Digests::HEADER, Digests::DATA, Digests::all(), Digests::all()]);
        let corrupt = if digests == Digests::all() { on(r, 2, 100, 20_000) } else { 0 };
        let command_count = r.scaled(20, 300);
        let network = NetworkSettings {
            latency_ns: r.scaled(2 * US, if is_prompt { 200 * US } else { 2 * MS }),
            jitter_ns: r.scaled(1, if is_prompt { 200 * US } else { 2 * MS }),
            capacity: r.scaled(2048, 256 << 10) as usize,
            piece_max: if r.one_in(3) { r.scaled(16, 512) } else { r.scaled(512, 64 << 10) } as usize,
            late: if is_prompt { 0 } else { on(r, 3, 1000, 50_000) },
            late_ns: r.scaled(MS, 2 * SECOND),
            short: on(r, 2, 1000, 500_000),
            corrupt,
        };
        // Small pieces are many: a connection is to live for a while.
        let corrupt = network.corrupt.min(network.piece_max as u32 * 20);
        let network = NetworkSettings { corrupt, ..network };
        let has_disk_faults = r.one_in(2);
        let error =
            |r: &mut Random, of: u64, high: u64| if has_disk_faults { on(r, of, 500, high) } else { 0 };
        let disk = DiskSettings {
            latency_ns: r.scaled(1, 200 * US),
            jitter_ns: r.scaled(1, MS),
            slow: on(r, 4, 500, 20_000),
            slow_ns: r.scaled(MS, 3 * SECOND),
            flush_ns: 0,
            stuck: 0,
            passing: error(r, 3, 200_000),
            short: error(r, 3, 300_000),
            read_error: error(r, 3, 20_000),
            write_error: error(r, 3, 20_000),
            sync_error: error(r, 4, 50_000),
            supports_ranges: !r.one_in(4),
            limit: if r.one_in(4) { r.between(1, 4) as usize } else { 256 },
        };
        let weight = |r: &mut Random, of: u64, high: u64| if r.one_in(of) { 0 } else { r.below(high) as u32 };
        let mix = Mix {
            read: 10 + weight(r, 9, 60),
            write: 10 + weight(r, 9, 60),
            durable_write: weight(r, 2, 30),
            flush: weight(r, 3, 20),
            write_zeroes: weight(r, 2, 15),
            deallocate: weight(r, 2, 15),
            compare: weight(r, 2, 15),
            compare_and_write: if r.one_in(3) { r.below(50) as u32 } else { 0 },
            verify: weight(r, 2, 5),
            copy: 0,
            flush_all: 0,
            hint: 0,
            refused: 0,
        };
        let mut scenario = Self {
            seed,
            reactor_count: r.between(1, 3) as u16,
            host_count: if r.one_in(3) { 2 } else { 1 },
            lanes_per_host: r.between(1, 3) as u16,
            depth: r.scaled(1, 32) as u16,
            is_memory,
            block_bytes: block_bytes as u32,
            block_count,
            first_block: 0,
            bad: BadBlocks::default(),
            deallocated_ranges_max: 4,
            page_bytes: 4096,
            write_grain_bytes: 512,
            deallocate_grain_bytes: 512,
            blocks_max: blocks_max as u32,
            second: None,
            second_block_count: 0,
            second_block_bytes: 0,
            digests,
            r2t_limit: r.between(1, 4) as u32,
            has_flow_control: r.one_in(3),
            limits: Limits {
                in_capsule_bytes: r.pick(&[0, 512, 4096, 8192, 8192]),
                transfer_bytes_max: transfer_bytes as u32,
                ..Limits::default()
            },
            timeouts: TimeoutConfig::default(),
            shares_address: false,
            c2h_data_bytes: transfer_bytes as u32,
            host_alignment: DataAlignment::NONE,
            keep_alive_ms: r.pick(&[1000, 5000, 10_000]),
            command_timeout_ns: r.pick(&[SECOND, 5 * SECOND, 30 * SECOND]),
            path_timeout_ns: 30 * SECOND,
            is_replayed: is_prompt && r.one_in(2),
            is_prompt,
            pool_bytes: if r.one_in(3) {
                // As small as a configuration may have it, and somewhat more.
                (transfer_bytes * r.between(4, 8)) as usize
            } else {
                POOL_BYTES
            },
            command_count,
            lane_command_count: 0,
            commands: None,
            chance: seed,
            think_ns: r.scaled(US, 5 * MS),
            mix,
            network,
            disk,
            late: on(r, 3, 1000, 100_000),
            late_ns: r.scaled(US, if is_prompt { MS } else { 500 * MS }),
            has_old_clocks: Random::new(seed, 83).one_in(4),
            faults: Vec::new(),
            cuts_at_answers: false,
            ends_with_power_cut: !is_memory && r.one_in(2),
            refusals: 0,
            stops_late: Random::new(seed, 71).one_in(2),
            writes_outlive_kill: false,
            kills_at_writes: false,
            zero_copy: ZeroCopy::Off,
            scout_count: 0,
            has_leaver: false,
            separate: None,
            authentication: None,
            reauthenticate_ms: 0,
            tls: TlsPolicy::Off,
            other_key_count: 0,
            clear_count: 0,
            key_updates: 0,
            pairs: None,
        };
        scenario.draw_faults(r);
        if r.one_in(3) {
            scenario.zero_copy = ZeroCopy::From(r.scaled(1, 64 << 10) as u32);
        }
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
        let lane_count = scenario.host_count as u64 * u64::from(scenario.lanes_per_host);
        scenario.lane_command_count = scenario.command_count.div_ceil(lane_count);
        scenario
    }

    /// Hosts of the discovery service, and changes of its log. The other draws stay the same.
    fn draw_discovery(&mut self) {
        let mut random = Random::new(self.seed, 7);
        let r = &mut random;
        if !r.one_in(3) {
            return;
        }
        self.scout_count = r.between(1, 3) as usize;
        let change_count = if r.one_in(4) { 0 } else { r.scaled(1, 40) };
        // Those who change much at a time change it before it is read.
        let rush = r.one_in(3).then(|| r.below(self.command_count));
        for _ in 0..change_count {
            let at = rush.unwrap_or_else(|| r.below(self.command_count));
            self.faults.push((at, Fault::Offer { step_count: r.scaled(1, 8) as u8 }));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// A second namespace that cannot be reached at times, and hosts that wait for it that long. Again, the others stay
    /// what they were.
    fn draw_paths(&mut self) {
        let mut random = Random::new(self.seed, 10);
        let r = &mut random;
        let Some(second) = self.second.as_mut().filter(|_| r.one_in(3)) else { return };
        let kind = r.pick(&["", "", "read:", "write:", "flush:"]);
        *second += &format!("&error={kind}{}%,as=unreachable,seed={}", r.between(1, 90), r.below(1000));
        self.path_timeout_ns = r.pick(&[0, 50 * MS, 2 * SECOND, 30 * SECOND]);
    }

    /// A host that comes and goes; it knows no digests, so nothing may be damaged on the way. Again, the others stay
    /// what they were.
    fn draw_leaver(&mut self) {
        let mut random = Random::new(self.seed, 11);
        self.has_leaver = random.one_in(4) && self.network.corrupt == 0;
        let mut random = Random::new(self.seed, 81);
        if self.has_leaver && random.one_in(2) {
            for _ in 0..random.between(1, 6) {
                self.faults.push((random.below(self.command_count), Fault::SpaceLow));
            }
            self.faults.sort_by_key(|(at, _)| *at);
        }
    }

    /// A host with separate queues, which speaks no TLS, and room for it. Again, the others stay what they were.
    fn draw_separate(&mut self) {
        let mut random = Random::new(self.seed, 91);
        let r = &mut random;
        if !r.one_in(SEPARATE_ONE_IN)
            || self.is_long()
            || !matches!(self.tls, TlsPolicy::Off | TlsPolicy::Allowed)
        {
            return;
        }
        let settings = SeparateSettings::new(r, self);
        let (limits, free) = (&mut self.limits, Limits::default());
        let connection_count = 1 + u32::from(settings.queue_count);
        let connections = limits.connection_count_max + connection_count;
        limits.connection_count_max = connections.min(free.connection_count_max);
        let per_address = limits.connection_count_per_address_max;
        let per_address = match self.shares_address {
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
        let limits = &mut self.limits;
        if !r.one_in(4) {
            limits.window_bytes_max = r.scaled(4 << 10, 32 << 10) as u32 & !3;
            limits.window_count_max = r.between(1, WINDOW_COUNT_MAX as u64) as u8;
        }
        if !r.one_in(3) {
            limits.h2c_data_bytes_max = r.scaled(4 << 10, 16 << 10) as u32 & !3;
        }
        if !r.one_in(3) {
            self.c2h_data_bytes = r.scaled(512, 16 << 10) as u32 & !3;
        }
        if r.one_in(4) {
            let alignment = |r: &mut Random| DataAlignment::from_raw(r.below(32) as u8).unwrap_or_default();
            self.host_alignment = alignment(r);
            if !self.has_leaver {
                limits.data_alignment = alignment(r);
            }
        }
        if r.one_in(2) {
            limits.compare_and_write_blocks_max = r.between(1, self.blocks_max.into()) as u32;
        }
        if r.one_in(2) {
            limits.write_zeroes_bytes_max = r.scaled(u64::from(self.block_bytes).max(4096), 1 << 20);
        }
        if r.one_in(2) {
            limits.copy_range_count_max = r.between(1, 4) as u16;
            limits.copy_range_blocks_max = r.scaled(1, 64) as u16;
            limits.copy_blocks_max = r.scaled(limits.copy_range_blocks_max.into(), 256) as u32;
        }
        let mut weight = |of: u64, high: u64| if r.one_in(of) { 1 + r.below(high) as u32 } else { 0 };
        (self.mix.flush_all, self.mix.hint, self.mix.refused) = (weight(3, 10), weight(3, 5), weight(3, 8));
    }

    /// Admin commands, controllers that are reset, and hosts that are silent for longer than their keep-alive allows.
    fn draw_admin(&mut self) {
        let mut random = Random::new(self.seed, 13);
        let r = &mut random;
        if r.one_in(2) {
            for _ in 0..r.scaled(1, 16) {
                let which = r.below(256) as u8;
                self.faults.push((r.below(self.command_count), Fault::Admin { which }));
            }
        }
        if r.one_in(6) {
            for _ in 0..r.between(1, 3) {
                self.faults.push((r.below(self.command_count), Fault::ControllerReset));
            }
        }
        if !self.is_prompt && r.one_in(4) {
            for _ in 0..r.between(1, 3) {
                let ns = r.scaled(SECOND, 30 * SECOND);
                self.faults.push((r.below(self.command_count), Fault::Freeze { ns }));
            }
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// Calls that the kernel of the target's machine refuses.
    fn draw_refusals(&mut self) {
        let mut random = Random::new(self.seed, 72);
        if !self.is_prompt && random.one_in(4) {
            self.refusals = random.scaled(500, 50_000) as u32;
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
        self.host_count = r.between(3, 8) as usize;
        for (at, _) in &mut self.faults {
            *at = *at * command_count / self.command_count;
        }
        for (_, fault) in self.faults.repeat(r.between(0, 3) as usize) {
            self.faults.push((r.below(command_count), fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
        self.command_count = command_count;
    }

    /// A key-value namespace with clients of its own, whose commands are as many as those on blocks.
    fn draw_pairs(&mut self) {
        // The memcached protocol has no digests, so a bit error would be a wrong value.
        if self.network.corrupt == 0 {
            self.pairs = PairSettings::draw(self.seed, self.reactor_count.into());
        }
        if let Some(pairs) = &mut self.pairs {
            let command_count = self.command_count.min(pairs.command_count_max());
            let factor = pairs.command_factor();
            for (at, _) in &mut self.faults {
                *at = factor * *at * command_count / self.command_count;
            }
            self.command_count = 2 * factor * command_count;
            pairs.client_command_limit = self.command_count;
            // The log reads and writes pieces of 256 KiB.
            self.pool_bytes = self.pool_bytes.max(POOL_BYTES_OF_LOG);
        }
        let mut random = Random::new(self.seed, 44);
        if self.pairs.is_some() && random.one_in(3) {
            for _ in 0..random.between(1, 4) {
                let fault = Fault::Memory { share: random.below(256) as u8 };
                self.faults.push((random.below(self.command_count), fault));
            }
            self.faults.sort_by_key(|(at, _)| *at);
        }
        let mut random = Random::new(self.seed, 41);
        if self.pairs.as_ref().is_some_and(|pairs| pairs.file_bytes() > 0) && random.one_in(3) {
            for _ in 0..random.between(1, 3) {
                let ns = random.scaled(MS, 10 * SECOND);
                self.faults.push((random.below(self.command_count), Fault::NoSpace { ns }));
            }
            self.faults.sort_by_key(|(at, _)| *at);
        }
        let mut random = Random::new(self.seed, 45);
        if self.pairs.as_ref().is_some_and(|pairs| pairs.file_bytes() > 0) && random.one_in(3) {
            for _ in 0..random.between(1, 2) {
                let of = random.pick(&[ErrorOf::Write, ErrorOf::Write, ErrorOf::Read, ErrorOf::Flush]);
                self.faults.push((random.below(self.command_count), Fault::LogError { of }));
            }
            self.faults.sort_by_key(|(at, _)| *at);
        }
        self.draw_clocks();
    }

    /// Copies and a second namespace. They have draws of their own, so that the others stay what they were.
    fn draw_more(&mut self) {
        let mut random = Random::new(self.seed, 5);
        let r = &mut random;
        if r.one_in(2) {
            self.mix.copy = 1 + r.below(15) as u32;
        }
        if !r.one_in(2) {
            return;
        }
        self.second_block_count = r.between(4, 32);
        let mut filters = String::new();
        if r.one_in(2) {
            let longest_us = r.scaled(1, if self.is_prompt { 500 } else { 50_000 });
            filters += &format!("&delay=0us-{longest_us}us");
        }
        if r.one_in(3) {
            filters += &format!("&error=write:1/{},seed={}", r.between(5, 100), r.below(1000));
        }
        if r.one_in(4) {
            filters += &format!("&error=read:1/{}", r.between(5, 100));
        }
        if r.one_in(4) {
            filters += &format!("&limit={}iops", r.scaled(2000, 100_000));
        }
        if r.one_in(8) {
            filters += "&trace";
        }
        let other = if self.block_bytes == 512 { 4096 } else { 512 };
        self.second_block_bytes = r.pick(&[self.block_bytes, other, other]);
        let bytes = self.second_block_count * u64::from(self.second_block_bytes);
        // Deallocate gives back pages, of which a small namespace has some.
        self.second = Some(format!("ram:{bytes}?small&lba={}{filters}", self.second_block_bytes));
        if r.one_in(3) {
            for _ in 0..r.between(1, 3) {
                let fault = Fault::Remove { away_ns: r.scaled(US, 2 * SECOND), returns: !r.one_in(4) };
                self.faults.push((r.below(self.command_count), fault));
            }
            self.faults.sort_by_key(|(at, _)| *at);
        }
    }

    /// Operations that are stuck or slow, other names, hosts that are not allowed. Again, the others stay what they
    /// were.
    fn draw_rest(&mut self) {
        let mut random = Random::new(self.seed, 6);
        let r = &mut random;
        if !self.is_memory && r.one_in(6) {
            self.disk.stuck = r.scaled(500, 20_000) as u32;
        }
        if self.second.is_some() && r.one_in(4) {
            for _ in 0..r.between(1, 3) {
                self.faults.push((r.below(self.command_count), Fault::Rename));
            }
        }
        if self.host_count > 1 && r.one_in(4) {
            for _ in 0..r.between(1, 3) {
                let fault = Fault::Bar { away_ns: r.scaled(US, 5 * SECOND) };
                self.faults.push((r.below(self.command_count), fault));
            }
        }
        self.faults.sort_by_key(|(at, _)| *at);
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
        for _ in 0..r.between(1, 2) {
            let is_power_cut = !self.is_prompt && !self.is_memory && r.one_in(2);
            let (down_ns, away_ns) = (r.scaled(MS, 2 * SECOND), r.scaled(10 * MS, 20 * SECOND));
            let fault = Fault::FailOver { is_power_cut, down_ns, away_ns };
            self.faults.push((r.below(self.command_count), fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// Reloads of the configuration with other changes than those above.
    fn draw_reloads(&mut self) {
        let mut random = Random::new(self.seed, 16);
        let r = &mut random;
        if !r.one_in(4) {
            return;
        }
        for _ in 0..r.scaled(1, 12) {
            let which = r.below(256) as u8;
            self.faults.push((r.below(self.command_count), Fault::Reload { which }));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// Hosts that may only read the second namespace for a while, or do not see it.
    fn draw_rights(&mut self) {
        let mut random = Random::new(self.seed, 65);
        let r = &mut random;
        if self.second.is_none() || !r.one_in(4) {
            return;
        }
        for _ in 0..r.between(1, 4) {
            let (which, away_ns) = (r.below(1 << 32), r.scaled(US, 2 * SECOND));
            self.faults.push((r.below(self.command_count), Fault::Rights { which, away_ns }));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// Two targets on one storage, and writes that go on when the first is killed.
    fn draw_takeovers(&mut self) {
        let mut random = Random::new(self.seed, 17);
        let r = &mut random;
        self.writes_outlive_kill = r.one_in(2);
        self.kills_at_writes =
            self.writes_outlive_kill && !self.is_memory && Random::new(self.seed, 42).one_in(2);
        if !r.one_in(8) {
            return;
        }
        for _ in 0..r.between(1, 3) {
            let kills_after_ns = (!r.one_in(4)).then(|| r.scaled(MS, 4 * SECOND));
            self.faults.push((r.below(self.command_count), Fault::Rival { kills_after_ns }));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// Pages of the kernel, and the preferences of the storage.
    fn draw_grains(&mut self) {
        let mut random = Random::new(self.seed, 18);
        let r = &mut random;
        self.page_bytes = r.pick(&[4 << 10, 4 << 10, 16 << 10, 64 << 10]);
        self.write_grain_bytes = r.pick(&[512, 4 << 10, 16 << 10, 64 << 10, 1 << 20]);
        self.deallocate_grain_bytes = r.pick(&[512, 4 << 10, 64 << 10, 1 << 20, 32 << 20]);
    }

    /// Cables that are pulled while commands wait.
    fn draw_cables(&mut self) {
        let mut random = Random::new(self.seed, 19);
        let r = &mut random;
        if self.is_prompt || !r.one_in(4) {
            return;
        }
        for _ in 0..r.between(1, 3) {
            let waiting = r.pick(&Waiting::OF_IO);
            self.faults.push((r.below(self.command_count), Fault::Unplug { waiting }));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// As many controllers as there are hosts, or one more: a host that has lost its own may find none left, until the
    /// target has noticed that.
    fn draw_controllers(&mut self) {
        let mut random = Random::new(self.seed, 43);
        if random.one_in(6) {
            let needed = self.host_count + self.scout_count + usize::from(self.has_leaver);
            self.limits.controller_count_max = needed + random.below(2) as usize;
        }
    }

    /// NVMe connections of all hosts.
    fn connection_count(&self) -> usize {
        self.host_count * (1 + usize::from(self.lanes_per_host))
            + self.scout_count
            + usize::from(self.has_leaver)
    }

    /// Limits on connections, controllers and queues that hosts just keep, timeouts of peers, and peers that open
    /// connections and say nothing, which meet these limits.
    fn draw_admission(&mut self) {
        let mut random = Random::new(self.seed, 61);
        let r = &mut random;
        self.shares_address = r.one_in(3);
        let (all, of_host) = (self.connection_count(), 1 + usize::from(self.lanes_per_host));
        let of_address = if self.shares_address { all } else { of_host };
        let limits = &mut self.limits;
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
            let of_host = if self.scout_count > 0 { 2 } else { 1 };
            limits.controller_count_per_host_max = of_host + r.below(2) as usize;
        }
        if r.one_in(3) {
            limits.queue_entries_max = r.between(if self.has_leaver { 32 } else { 16 }, 40) as u16;
        }
        if r.one_in(3) {
            limits.io_queue_count_max = self.lanes_per_host + r.below(2) as u16;
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
            self.timeouts.connect_ms = r.between(4000, 10_000);
            self.timeouts.pdu_ms = r.between(2000, 30_000);
            self.timeouts.send_ms = r.between(2000, 10_000);
            self.timeouts.data_ms = r.between(2000, 30_000);
            self.timeouts.contended_ms = r.between(500, 2000);
        }
        if r.one_in(5) {
            for _ in 0..r.between(1, 3) {
                let ns = r.scaled(10 * MS, 20 * SECOND);
                let fault = Fault::Flood { count: r.between(4, 40) as u8, ns };
                self.faults.push((r.below(self.command_count), fault));
            }
            self.faults.sort_by_key(|(at, _)| *at);
        }
    }

    /// The limits of a connection.
    pub(crate) fn wire_limits(&self) -> WireLimits {
        let limits = &self.limits;
        WireLimits {
            in_capsule_bytes: limits.in_capsule_bytes,
            transfer_bytes: limits.transfer_bytes_max,
            parts_max: {
                let bytes = self.second_block_count * u64::from(self.second_block_bytes);
                bytes / u64::from(limits.transfer_bytes_max) + 2
            },
            window_bytes: limits.window_bytes_max,
            window_count: limits.window_count_max.into(),
            c2h_data_bytes: self.c2h_data_bytes,
            abort_count: limits.abort_count_max.into(),
            io_queue_count: limits.io_queue_count_max.into(),
            queue_entries: limits.queue_entries_max.into(),
            is_short_of_controllers: limits.controller_count_max < Limits::default().controller_count_max,
            ..WireLimits::default()
        }
    }

    /// Blocks of the first namespace in a grain of its storage.
    pub(crate) fn grain_blocks(&self, grain_bytes: u32) -> u32 {
        (grain_bytes / self.block_bytes).max(1)
    }

    /// The sizes that a namespace must report as preferred for writes, and for deallocation, blocks.
    pub(crate) fn preferred_blocks(&self, info: &NamespaceInfo) -> (u32, u32) {
        if info.nsid == Nsid::new(1) && !self.is_memory {
            return (
                self.grain_blocks(self.write_grain_bytes),
                self.grain_blocks(self.deallocate_grain_bytes),
            );
        }
        let block_bytes = info.geometry.as_ref().map_or(self.block_bytes, |geometry| geometry.lba_bytes);
        (1, (self.page_bytes as u32 / block_bytes).max(1))
    }

    /// The address of a host's thread.
    pub(crate) fn address(&self, thread: usize) -> SocketAddr {
        let of_hosts =
            thread.saturating_sub(self.reactor_count.into()) / (1 + usize::from(self.lanes_per_host));
        let host = match of_hosts {
            _ if self.shares_address => 1,
            host if host < self.host_count => 2 + host as u8,
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
        if lba < self.block_count { self.block_bytes } else { self.second_block_bytes }
    }

    /// Blocks that one command moves at most in the namespace that has a block of the model.
    pub(crate) fn blocks_max_at(&self, lba: u64) -> u32 {
        (self.blocks_max * self.block_bytes / self.block_bytes_at(lba)).max(1)
    }

    /// Blocks of both namespaces.
    pub(crate) fn all_block_count(&self) -> u64 {
        self.block_count + self.second_block_count
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
        if !self.is_memory {
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
        for _ in 0..r.scaled(1, 12) {
            let down_ns = r.scaled(MS, 20 * SECOND);
            let fault = match r.pick(&kinds) {
                0 => Fault::Reset,
                1 => Fault::Cut,
                2 => Fault::Partition { ns: r.scaled(MS, 30 * SECOND) },
                3 => Fault::Kill { down_ns },
                4 => Fault::PowerCut { down_ns },
                5 => Fault::Stall {
                    ns: if self.is_prompt { r.scaled(US, MS) } else { r.scaled(MS, 15 * SECOND) },
                },
                6 => Fault::Resize { block_count: r.between(4, self.block_count) },
                _ => Fault::Cancel,
            };
            self.faults.push((r.below(self.command_count), fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }
}

/// The smallest limit that allows transfers of this number of bytes.
fn transfer_limit(bytes: u64) -> u64 {
    bytes.next_power_of_two().max(16 << 10)
}
