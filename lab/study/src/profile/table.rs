//! The layer of a function, by the beginning of its name; the longest beginning decides.
//!
//! Names of the kernel are compared without underscores in front. Names of programs are paths as Rust writes them,
//! without `<` in front, and code that drops a value belongs to the crate of the value; C functions have no underscores
//! in front either.

use super::layer::Layer;

/// The meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The layer.
    In(Layer),
    /// A helper of its caller.
    Caller,
}

use Layer::{Application, Copies, Memory, Nvme, Receive, Scheduling, Storage, SystemCalls, Transmit};
use Place::{Caller, In};

type Row = (Place, &'static [&'static str]);

/// Functions of the kernel. Congestion control and most of `tcp_` run as data and acknowledgements arrive; those of `tcp_` that
/// send are listed.
#[rustfmt::skip]
const KERNEL: &[Row] = &[
    (In(SystemCalls), &[
        // Entry and exit.
        "entry_", "do_syscall", "syscall_", "x64_sys_", "sys_", "do_sys_", "ksys_", "ia32_", "el0", "do_el0", "invoke_syscall",
        "arm64_sys", "exit_to_user_mode", "ret_to_user", "ret_from_fork", "copy_msghdr_from_user", "copy_iovec_from_user",
        "iovec_from_user", "import_iovec", "import_ubuf", "import_single", "sockfd_lookup", "move_addr_to",
        // Files behind descriptors.
        "fdget", "fget", "fput", "fd_install", "vfs_", "rw_verify", "eventfd", "pipe_", "anon_pipe", "security_file", "do_iter_readv", "do_readv",
        // io_uring.
        "io_", "iou_",
        // Polling for events.
        "do_poll", "poll_", "pollwait", "sock_poll", "tcp_poll", "ep_", "epoll", "do_epoll", "core_sys_select", "set_user_sigmask",
        "restore_saved_sigmask",
    ]),
    (In(Transmit), &[
        "sock_sendmsg", "sock_write_iter", "inet_sendmsg", "inet6_sendmsg", "inet_send_prepare", "sock_wfree", "sk_stream",
        "tcp_sendmsg", "tcp_push", "tcp_write_", "tcp_transmit", "tcp_send_", "tcp_skb_entail", "tcp_stream_", "tcp_wmem",
        "tcp_tso", "tcp_established_options", "tcp_options_write", "tcp_event_new_data", "tcp_update_skb_after_send",
        "tcp_rate_skb_sent", "tcp_rate_check_app", "tcp_current_mss", "tcp_schedule_loss_probe", "tcp_v4_send", "tcp_v6_send",
        "tcp_small_queue", "tcp_wfree", "tcp_chrono", "tcp_fragment", "tcp_tsq", "tcp_tasklet", "tcp_select_window", "tcp_nagle",
        "tcp_rbtree_insert", "tcp_cwnd_test", "tcp_init_tso", "tcp_sync_mss", "tcp_mtu", "tcp_pacing", "tcp_pace",
        "tcp_downgrade_zcopy", "tcp_set_skb_tso", "tcp_cwnd_validate", "tcp_skb_collapse_tstamp", "tcp_tx_timestamp",
        "cubictcp_cwnd_event", "bictcp_cwnd_event", "bpf_skops_write_hdr", "skb_do_copy_data_nocache", "skb_splice", "msg_zerocopy",
        "skb_zerocopy", "skb_zcopy", "ip_queue_xmit", "ip_output", "ip_finish_output", "ip_local_out", "ip_send_check",
        "ip_copy_addrs", "ip_skb_dst_mtu", "ipv4_mtu", "ipv4_dst_check", "ip6_xmit", "ip6_output", "ip6_finish_output", "ip6_local_out",
        "inet6_csk_xmit", "ip6_dst_check", "ip6_mtu", "sk_dst_check", "sk_setup_caps", "dst_", "neigh_", "dev_queue_xmit", "dev_hard_start_xmit",
        "loopback_xmit", "validate_xmit", "netif_skb_features", "passthru_features_check", "netdev_core_pick", "netdev_pick_tx",
        "skb_csum_hwoffload", "skb_clone_tx", "skb_network_protocol", "skb_tx_hash", "qdisc_", "sch_direct_xmit", "pfifo", "fq_", "veth_xmit",
        "start_xmit", "virtnet_send", "xmit_skb", "xmit_one", "dql_", "harmonize",
    ]),
    (In(Receive), &[
        "sock_recvmsg", "sock_read_iter", "inet_recvmsg", "inet6_recvmsg", "tcp_", "cubictcp", "bictcp", "bbr_", "dctcp", "reno", "ip_rcv",
        "ip_local_deliver", "ip_protocol_deliver", "ip_sabotage", "ip_sublist", "raw_local_deliver", "raw_v4", "ipv6_rcv", "ip6_rcv", "ip6_input",
        "ip6_protocol_deliver", "raw6_local", "inet_lookup", "inet6_lookup", "inet_ehashfn", "inet6_ehashfn", "netif_rx", "netif_receive",
        "net_rx", "enqueue_to_backlog", "process_backlog", "sk_backlog", "napi_", "handle_softirqs", "do_softirq", "net_tx_action",
        "gro_", "dev_gro", "inet_gro", "skb_gro", "eth_type_trans", "sk_filter", "sock_def_readable", "sock_rfree", "xfrm_policy_check",
        "xfrm4_policy", "skb_try_coalesce", "skb_queue_", "sk_busy", "veth_poll", "veth_xdp", "virtnet_poll", "receive_buf", "page_pool",
        "skb_advance_to_frag", "get_netmem", "inet_csk", "rps_", "bpf_skops_parse", "sk_get_meminfo", "rmem_",
    ]),
    (In(Copies), &[
        "copy_to_iter", "copy_from_iter", "copy_page", "copy_mc", "copy_user", "rep_movs", "memcpy", "pi_memcpy", "memmove", "check_object_size",
        "check_stack_object", "check_heap_object", "check_kernel_text", "skb_copy_datagram", "skb_datagram_iter", "skb_copy_bits", "skb_store_bits",
        "simple_copy_to_iter", "iov_iter", "iterate_", "arch_copy_to_user", "arch_copy_from_user", "skb_copy_and_csum", "csum_and_copy",
    ]),
    (In(Scheduling), &[
        "schedule", "sched_", "finish_task_switch", "switch_", "context_switch", "try_to_wake", "ttwu_", "wake_", "default_wake", "autoremove_wake",
        "enqueue_task", "enqueue_entity", "dequeue_task", "dequeue_entit", "pick_", "update_curr", "update_load_avg", "update_rq_clock",
        "update_cfs", "update_process_times", "update_wall", "put_prev", "set_next", "select_task", "select_idle", "prepare_to_wait", "finish_wait",
        "prepare_task_switch", "place_entity", "avg_vruntime", "entity_", "reweight", "task_", "wakeup_preempt", "check_preempt", "resched",
        "newidle", "psi_", "available_idle", "idle_", "futex", "do_futex", "hrtimer", "timerqueue", "tick_", "run_timer", "expire_timers",
        "call_timer", "run_local_timers", "run_posix", "irq_", "handle_irq", "handle_edge", "common_interrupt", "sysvec", "asm_", "irqentry",
        "exc_nmi", "el1", "gic_", "rcu_core", "rcu_sched", "rcu_do", "rcu_note", "rcu_qs", "rcu_cblist", "tmigr", "note_gp", "rseq", "rq_", "cpuacct", "account_",
        "cgroup_account", "native_smp", "native_write_msr", "x2apic", "lapic", "smp_", "sysvec_call", "flush_smp", "generic_smp", "load_balance", "nohz",
        "dl_", "rt_", "wait_woken", "woken_wake", "sk_wait_data", "io_schedule", "cpu_startup", "do_idle", "default_idle", "pv_native_safe_halt",
        "clockevents", "local_clock", "paravirt_sched", "scheduler_tick", "perf_", "ctx_sched", "event_sched", "visit_groups", "x86_pmu",
        "migrat", "yield_task", "add_wait_queue", "remove_wait_queue", "do_sched_yield", "sys_sched_yield", "cpu_util", "calc_", "jiffies", "timekeeping", "do_timer",
    ]),
    (In(Memory), &[
        "kmem_cache", "kmalloc", "kfree", "kvfree", "kvmalloc", "slab_", "refill_obj", "alloc_skb", "build_skb", "napi_alloc", "netdev_alloc",
        "skb_release", "skb_free", "skb_defer", "skb_attempt_defer", "consume_skb", "napi_consume", "kfree_skb", "sk_skb_reason", "skb_page_frag",
        "sk_page_frag", "page_frag", "skb_unref", "alloc_pages", "alloc_frozen", "free_frozen", "free_pages", "free_unref", "free_tail_page",
        "free_one_page", "get_page_from", "rmqueue", "zone_", "get_pfnblock", "put_page", "folio", "lru_", "mod_zone", "mod_node", "mod_lruvec",
        "mod_memcg", "mem_cgroup", "memcg", "obj_cgroup", "count_memcg", "charge_memcg", "try_charge", "clear_page", "clear_huge", "prep_new_page",
        "prep_compound", "post_alloc", "build_detached", "put_cpu_partial", "get_partial", "new_slab", "allocate_slab", "setup_object",
        "exc_page_fault", "asm_exc_page_fault", "do_user_addr_fault", "do_mem_abort", "handle_mm_fault", "do_anonymous", "do_fault", "do_pte",
        "do_wp_page", "vma_", "mmap_", "do_mmap", "unmap_", "zap_", "pte_", "pmd_", "tlb_", "flush_tlb", "sys_madvise", "madvise",
        "do_madvise", "refill_stock", "drain_", "bulk_", "percpu_counter", "page_counter", "policy_nodemask", "css_rstat", "vms_", "arch_check_zapped", "compact", "alloc_", "free_page", "compound",
    ]),
    (In(Storage), &[
        "ext4", "jbd2", "xfs", "btrfs", "f2fs", "fuse", "iomap", "filemap", "generic_file", "generic_perform_write", "shmem", "blk", "bio_", "submit_bio",
        "bvec", "block_", "blkdev", "dio_", "mpage", "nvme_", "virtio_queue_rq", "virtblk", "loop_", "elv_", "dd_", "mq_", "sbitmap", "wb_",
        "writeback", "balance_dirty", "page_cache", "read_pages", "buffered_", "dm_", "md_", "scsi", "sd_", "virtqueue", "vring", "iowrite",
    ]),
    (Caller, &[
        // Locks and lists.
        "raw_spin_", "raw_read_", "raw_write_", "raw_callee_save", "pv_queued", "native_queued", "queued_", "pv_wait", "pv_kick", "kvm_kick", "kvm_wait", "lock_sock", "release_sock",
        "tcp_release_cb", "sock_release_ownership", "mutex", "down_", "up_", "rwsem", "osq_", "rcu_read", "local_bh", "lockref", "list_", "llist_",
        "rb_", "find_next_bit", "find_first_bit", "bitmap", "radix_tree", "xas_", "xa_", "mas_", "idr_", "refcount", "percpu_ref", "cmpxchg",
        // Time.
        "ktime_get", "read_tsc", "kvm_clock", "pvclock", "arch_counter", "tcp_mstamp_refresh", "usecs_to_jiffies", "msecs_to_jiffies", "nsecs_to",
        "mod_timer", "lock_timer", "get_nohz_timer", "timer_", "add_timer", "del_timer", "detach_if", "sk_reset_timer", "sk_stop_timer",
        "tcp_rearm_rto", "internal_add_timer", "calc_wheel", "enqueue_timer", "trigger_dyntick",
        // Socket buffers and sockets in both directions.
        "skb_", "copy_skb_header", "sk_mem_", "sk_forced_mem", "sk_leave_memory", "tcp_leave_memory", "tcp_enter_memory", "tcp_under_memory", "sk_free",
        "sock_", "security_", "bpf_lsm", "apparmor", "aa_", "selinux", "tomoyo", "nf_", "nft_", "ipt_", "xfrm_lookup", "minmax", "bpf_prog", "cgroup_bpf",
        // Moves between user and kernel that are not of data, and helpers of all kinds.
        "copy_from_user", "copy_to_user", "get_user", "put_user", "get_timespec", "put_timespec", "timespec64", "virt_addr_valid", "is_vmalloc", "memset", "memcmp", "strlen", "strcmp", "crc32", "siphash",
        "get_random", "cond_resched", "preempt_", "might_", "fentry", "ftrace", "its_return", "x86_indirect", "x86_return", "srso", "retbleed",
        "clear_bhb", "csum_", "do_csum", "jhash", "div64", "udelay", "static_call", "task_work", "io_run_task_work", "sock_def_write_space",
    ]),
];

/// Functions of programs: ours, libraries and the C library.
#[rustfmt::skip]
const PROGRAM: &[Row] = &[
    (In(Application), &["nvlane_load::", "nvlane_study::", "nvlane_peer::", "nvlane::"]),
    (In(Nvme), &[
        "nvlane_host::", "nvlane_proto::", "nvlane_wire::", "nvlane_subsystem::", "nvlane_reactor::", "nvlane_security::", "nvlane_linux::", "nvlane_memory::",
        // The queue of a mailbox.
        "std::sync::mpmc", "std::sync::mpsc",
        "crc_fast::",
    ]),
    (In(Storage), &["nvlane_store::", "nvlane_kv::"]),
    (In(SystemCalls), &[
        "nvlane_reactor::ring", "io_uring::", "rustix::", "libc::", "[vdso]", "std::sys::pal::unix::time", "std::time", "clock_gettime", "syscall",
        "recv", "send", "libc_recv", "libc_send", "epoll_", "poll", "ppoll", "read", "write", "libc_read", "libc_write", "ioctl", "syscall_cancel", "GI_",
    ]),
    (In(Copies), &["memmove", "memcpy", "memset", "compiler_builtins::mem"]),
    (In(Scheduling), &["std::thread::park", "std::thread::functions", "pthread_", "futex", "lll_lock", "std::sys::sync", "sched_yield"]),
    (In(Memory), &["mi_", "libmimalloc_sys::", "mimalloc::", "malloc", "free", "calloc", "realloc", "int_malloc", "int_free", "mmap", "munmap", "madvise"]),
    (Caller, &["nvlane_linux::random", "std::", "core::", "alloc::"]),
];

/// The layer that a kernel function belongs to, by its name.
pub(super) fn of_kernel(name: &str) -> Option<Place> {
    let name = name.trim_start_matches('_');
    // The padding in front of a function.
    longest(KERNEL, name.strip_prefix("pfx_").unwrap_or(name).trim_start_matches('_'))
}

/// The layer that a function of a program belongs to, by its name.
pub(super) fn of_program(name: &str) -> Option<Place> {
    let name = name.strip_prefix("core::ptr::drop_in_place<").unwrap_or(name);
    longest(PROGRAM, name.trim_start_matches(['_', '<', '&', '*']))
}

fn longest(rows: &[Row], name: &str) -> Option<Place> {
    let all = rows.iter().flat_map(|(place, starts)| starts.iter().map(move |start| (place, start)));
    let fitting = all.filter(|(_, start)| name.starts_with(**start));
    fitting.max_by_key(|(_, start)| start.len()).map(|(place, _)| *place)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn functions_of_the_kernel_have_their_layer() {
        for (name, place) in [
            ("do_syscall_64", In(SystemCalls)),
            ("__x64_sys_recvfrom", In(SystemCalls)),
            ("____sys_sendmsg", In(SystemCalls)),
            ("__do_sys_io_uring_enter", In(SystemCalls)),
            ("io_submit_sqes", In(SystemCalls)),
            ("io_schedule", In(Scheduling)),
            ("tcp_poll", In(SystemCalls)),
            ("tcp_sendmsg_locked", In(Transmit)),
            ("__tcp_transmit_skb", In(Transmit)),
            ("tcp_rate_skb_sent", In(Transmit)),
            ("tcp_rate_skb_delivered", In(Receive)),
            ("ip_finish_output2", In(Transmit)),
            ("tcp_ack", In(Receive)),
            ("tcp_recvmsg_locked", In(Receive)),
            ("tcp_v4_rcv", In(Receive)),
            ("tcp_v4_send_check", In(Transmit)),
            ("cubictcp_acked", In(Receive)),
            ("handle_softirqs", In(Receive)),
            ("_copy_to_iter", In(Copies)),
            ("__check_object_size", In(Copies)),
            ("_copy_from_user", Caller),
            ("finish_task_switch.isra.0", In(Scheduling)),
            ("try_to_wake_up", In(Scheduling)),
            ("hrtimer_interrupt", In(Scheduling)),
            ("__alloc_skb", In(Memory)),
            ("skb_release_data", In(Memory)),
            ("skb_clone", Caller),
            ("clear_page_erms", In(Memory)),
            ("_raw_spin_lock_bh", Caller),
            ("__pv_queued_spin_lock_slowpath", Caller),
            ("release_sock", Caller),
            ("__pfx_read_tsc", Caller),
            ("blk_mq_submit_bio", In(Storage)),
            ("ext4_file_read_iter", In(Storage)),
        ] {
            assert_eq!(of_kernel(name), Some(place), "{name}");
        }
        assert_eq!(of_kernel("snd_pcm_period_elapsed"), None);
    }

    #[test]
    fn functions_of_programs_have_their_layer() {
        for (name, place) in [
            ("nvlane_load::runner::worker::Running<D>::give_out", In(Application)),
            (
                "<nvlane_load::runner::remote::RemoteQueues as nvlane_load::runner::queues::Queues>::take",
                In(Application),
            ),
            ("nvlane::main", In(Application)),
            ("nvlane_host::lane_core::LaneCore<B>::on_bytes", In(Nvme)),
            ("nvlane_reactor::turn::Reactor<A>::turn", In(Nvme)),
            ("nvlane_reactor::ring::RingEngine::submit", In(SystemCalls)),
            ("nvlane_linux::random::mix", Caller),
            ("nvlane_store::block::null::NullBackend::start", In(Storage)),
            ("rustix::backend::net::syscalls::recv", In(SystemCalls)),
            ("[vdso]", In(SystemCalls)),
            ("<std::sys::pal::unix::time::Timespec>::sub_timespec", In(SystemCalls)),
            ("std::sync::mpmc::list::Channel<T>::try_recv", In(Nvme)),
            ("core::cmp::le", Caller),
            ("__memmove_avx512_unaligned_erms", In(Copies)),
            ("mi_malloc", In(Memory)),
            ("core::ptr::drop_in_place<nvlane_memory::payload::Payload>", In(Nvme)),
            ("core::ptr::drop_in_place<alloc::string::String>", Caller),
            ("__GI___pthread_disable_asynccancel", In(SystemCalls)),
        ] {
            assert_eq!(of_program(name), Some(place), "{name}");
        }
        assert_eq!(of_program("aes_gcm_encrypt"), None);
    }

    #[test]
    fn a_beginning_is_listed_once_and_can_be_found() {
        for (rows, of) in [(KERNEL, of_kernel as fn(&str) -> _), (PROGRAM, of_program)] {
            let mut seen = BTreeSet::new();
            for (place, start) in
                rows.iter().flat_map(|(place, starts)| starts.iter().map(move |start| (place, start)))
            {
                assert!(seen.insert(*start), "{start} twice");
                assert_eq!(of(start), Some(*place), "{start}");
            }
        }
    }
}
