//! What calls name: the objects of a configuration, and their keys.

/// A kind of object.
#[derive(Clone, Copy, Debug)]
pub struct Noun {
    /// Its name.
    pub name: &'static str,
    /// Its description in the help.
    pub about: &'static str,
    /// Where it is in the configuration.
    pub(crate) place: &'static [&'static str],
    /// The key that names one of several; `None` for a table that is there once.
    pub id: Option<&'static str>,
    /// Whether it is part of a subsystem.
    pub in_subsystem: bool,
    /// Its other keys.
    pub keys: &'static [Key],
}

/// A key of an object.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name in the configuration.
    pub name: &'static str,
    /// Form of its value.
    pub form: Form,
    /// Name of its value, for help.
    pub value_name: &'static str,
    /// What it means, for help.
    pub about: &'static str,
}

/// Form of a value on a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Text.
    Text,
    /// A number.
    Number,
    /// `true` or `false`.
    Flag,
    /// Texts with commas between them.
    Texts,
    /// `any`, or texts with commas between them.
    Hosts,
    /// Two numbers with a hyphen between them.
    Range,
    /// JSON: a table of lists.
    Table,
}

const fn key(name: &'static str, form: Form, value_name: &'static str, about: &'static str) -> Key {
    Key { name, form, value_name, about }
}

const fn text(name: &'static str, value_name: &'static str, about: &'static str) -> Key {
    key(name, Form::Text, value_name, about)
}

const fn number(name: &'static str, about: &'static str) -> Key {
    key(name, Form::Number, "NUMBER", about)
}

const SECRETS: [Key; 3] = [
    text(
        "dhchap_secret",
        "REFERENCE",
        "Secret that the host must have: file:PATH, keyring:NAME, env:NAME or credential:NAME",
    ),
    text("dhchap_ctrl_secret", "REFERENCE", "Secret that the subsystem shows to a host that asks for it"),
    text("tls_key", "REFERENCE", "Pre-shared key of TLS"),
];

const DOORBELL: Key = text(
    "doorbell",
    "POLICY",
    "When waiting responses are sent: immediate, turn, fixed:COMMANDS,BYTES,USEC or adaptive:USEC",
);
const ALLOW: Key = key(
    "allow",
    Form::Texts,
    "PREFIXES",
    "Addresses and prefixes that connections may come from, with commas between them",
);

const RATES: [Key; 8] = [
    number("iops", "Limit of operations per second"),
    number("read_iops", "Limit of reads per second"),
    number("write_iops", "Limit of writes per second"),
    text("bytes_per_s", "SIZE", "Limit of bytes read and written per second, such as 100M"),
    text("read_bytes_per_s", "SIZE", "Limit of bytes read per second"),
    text("write_bytes_per_s", "SIZE", "Limit of bytes written per second"),
    number("burst_ms", "Time whose allowance may be used at once after a pause, ms; 10 by default"),
    number("min_iops", "Operations per second that are served before those of others"),
];

/// Keys of a host.
const OF_HOST: [Key; 11] = [
    SECRETS[0], SECRETS[1], SECRETS[2], RATES[0], RATES[1], RATES[2], RATES[3], RATES[4], RATES[5], RATES[6],
    RATES[7],
];

/// All nouns.
pub const NOUNS: &[Noun] = &[
    Noun {
        name: "subsystem",
        about: "Subsystems: what hosts connect to",
        place: &["subsystem"],
        id: Some("nqn"),
        in_subsystem: false,
        keys: &[
            key(
                "hosts",
                Form::Hosts,
                "HOSTS",
                "Hosts that may connect: any, or NQNs with commas between them; \"\" for none",
            ),
            text("serial", "TEXT", "Serial number, up to 20 characters"),
            text("model", "TEXT", "Model, up to 40 characters"),
            DOORBELL,
            key("cntlids", Form::Range, "FIRST-LAST", "Controller ids"),
            text("memcached", "any", "memcached clients may use its keys in spite of lists of hosts"),
            SECRETS[0],
            SECRETS[1],
            SECRETS[2],
            key("dhchap_hash", Form::Texts, "NAMES", "Hash functions, the preferred one first"),
            key("dhchap_dhgroup", Form::Texts, "NAMES", "Diffie-Hellman groups, the preferred one first"),
            text(
                "refused_reauthentication",
                "WORD",
                "What becomes of a host that fails to authenticate again: disconnect or keep",
            ),
        ],
    },
    Noun {
        name: "namespace",
        about: "Namespaces of a subsystem: disks, and keys and values",
        place: &["namespace"],
        id: Some("nsid"),
        in_subsystem: true,
        keys: &[
            text(
                "storage",
                "SPEC",
                "ram:SIZE, null:SIZE, file:PATH?size=SIZE, device:PATH, pool:POOL/VOLUME, rbd:POOL/IMAGE, nbd://HOST/EXPORT, vhost-user:SOCKET, kv:ram:SIZE, kv:file:PATH?size=SIZE or kv:rados:POOL",
            ),
            text("uuid", "UUID", "UUID"),
            text("nguid", "NGUID", "NGUID; the digits of the UUID by default"),
            key(
                "hosts",
                Form::Hosts,
                "HOSTS",
                "Hosts of the subsystem that see it: any, or NQNs with commas between them",
            ),
            key("write_hosts", Form::Hosts, "HOSTS", "Hosts that may write to it"),
            key(
                "key_prefixes",
                Form::Table,
                "JSON",
                "Keys that each host may use, such as {\"nqn.…:shop\": [\"shop/\"]}",
            ),
            RATES[0],
            RATES[1],
            RATES[2],
            RATES[3],
            RATES[4],
            RATES[5],
            RATES[6],
            RATES[7],
        ],
    },
    Noun {
        name: "host",
        about: "Hosts that may connect to a subsystem, their secrets and rate limits",
        place: &["hosts"],
        id: Some("nqn"),
        in_subsystem: true,
        keys: &OF_HOST,
    },
    Noun {
        name: "key",
        about: "Secrets and TLS keys of single hosts: where they are, never what they are; and rate limits",
        place: &["host"],
        id: Some("nqn"),
        in_subsystem: true,
        keys: &OF_HOST,
    },
    Noun {
        name: "listener",
        about: "Addresses that hosts connect to",
        place: &["listener"],
        id: Some("address"),
        in_subsystem: false,
        keys: &[
            text("advertise", "ADDR", "Address that hosts are told instead"),
            key("subsystems", Form::Flag, "WHETHER", "Leads to subsystems: true or false"),
            key("discovery", Form::Flag, "WHETHER", "Leads to the discovery service: true or false"),
            DOORBELL,
            text("tls", "POLICY", "off, allowed, concatenated or required"),
            ALLOW,
        ],
    },
    Noun {
        name: "memcached",
        about: "Addresses that memcached clients connect to",
        place: &["memcached"],
        id: Some("address"),
        in_subsystem: false,
        keys: &[
            text("tls_certificate", "REFERENCE", "Certificates, PEM: clients use TLS"),
            text("tls_key", "REFERENCE", "Private key of the certificate"),
            text("tls_client_ca", "REFERENCE", "Authorities of clients' certificates"),
            text("tls_clients", "WORD", "required or optional"),
            text("users", "REFERENCE", "Lines of user:password"),
            ALLOW,
        ],
    },
    Noun {
        name: "pool",
        about: "Pools: directories with volumes and snapshots",
        place: &["pool"],
        id: Some("name"),
        in_subsystem: false,
        keys: &[
            text("dir", "DIR", "Its directory, on XFS or btrfs for clones and snapshots"),
            text("quota", "SIZE", "The most that its volumes may come to, such as 1T"),
            text("space_low", "SIZE", "Free space below which it is low: a size or a share; default 10%"),
        ],
    },
    Noun {
        name: "referral",
        about: "Other discovery services that hosts are referred to",
        place: &["discovery", "referral"],
        id: Some("address"),
        in_subsystem: false,
        keys: &[text("nqn", "NQN", "Name of the service")],
    },
    Noun {
        name: "limit",
        about: "Limits that hosts are held to; a change takes a restart",
        place: &["limits"],
        id: None,
        in_subsystem: false,
        keys: &[
            text("transfer", "SIZE", "Data of one command"),
            text("in_capsule", "SIZE", "Write data inside a command capsule"),
            text("kv_in_capsule", "SIZE", "The same for hosts that reach key-value namespaces only"),
            text("h2c_data", "SIZE", "Data of one H2CData PDU"),
            text("window", "SIZE", "Data of one R2T"),
            number("windows", "R2Ts of one command at a time"),
            number("alignment", "Alignment of data in PDUs to the target, bytes"),
            number("queue_entries", "Commands outstanding on a queue"),
            number("io_queues", "I/O queues of one controller"),
            number("controllers", "Controllers of all hosts"),
            number("controllers_per_host", "Controllers of one host"),
            number("connections", "Connections of all hosts"),
            number("connections_per_address", "Connections from one address"),
            number("memcached_connections", "Connections of all memcached clients"),
            number("memcached_connections_per_address", "Connections of memcached clients from one address"),
            number("unconnected", "Connections without a queue"),
            number("connections_per_s", "Connections accepted per second"),
        ],
    },
    Noun {
        name: "timeout",
        about: "Timeouts of peers, in seconds; a change takes a restart, except that of secret_overlap_s",
        place: &["timeouts"],
        id: None,
        in_subsystem: false,
        keys: &[
            number("connect_s", "From a connection to its ICReq, and from there to Connect"),
            number("pdu_s", "From a PDU's first byte to its last"),
            number("send_s", "For a peer that reads nothing"),
            number("data_s", "From an R2T to all of its data"),
            number("contended_s", "Replaces send_s and data_s while others wait for buffers"),
            number("stop_s", "For I/O to end when the target stops"),
            number("memcached_idle_s", "For memcached clients without a command; 0 for ever"),
            number("secret_overlap_s", "How long a changed secret is still accepted"),
        ],
    },
    Noun {
        name: "reactor",
        about: "Threads: doorbell and placement change at once, the others with a restart",
        place: &["reactors"],
        id: None,
        in_subsystem: false,
        keys: &[
            DOORBELL,
            text("placement", "POLICY", "Which thread serves a lane: load, napi, cpu or queue"),
            text("cores", "LIST", "One thread on each of these cores"),
            number("count", "Number of threads, in place of cores"),
            text("engine", "ENGINE", "auto, uring or epoll"),
            text("spin", "WHEN", "auto, always or never"),
            number("busy_poll_us", "Time that a wait polls the device before it sleeps"),
            key(
                "prefer_busy_poll",
                Form::Flag,
                "WHETHER",
                "Keep the device's interrupt off while it is polled",
            ),
            number("busy_poll_budget", "Packets per pass"),
            text("receive", "HOW", "staging or pdu"),
            text("in_place", "SIZE", "Least write data that is received straight into its buffer"),
            text("zero_copy", "SIZE", "Least response that is sent without a copy; off or auto"),
            text("pool", "SIZE", "Buffers of each thread"),
        ],
    },
    Noun {
        name: "discovery",
        about: "The discovery service",
        place: &["discovery"],
        id: None,
        in_subsystem: false,
        keys: &[text("nqn", "NQN", "Its unique name; a change takes a restart")],
    },
    Noun {
        name: "audit",
        about: "The audit log",
        place: &["audit"],
        id: None,
        in_subsystem: false,
        keys: &[text("file", "FILE", "File that lines are appended to")],
    },
    Noun {
        name: "metrics",
        about: "Metrics for Prometheus",
        place: &["metrics"],
        id: None,
        in_subsystem: false,
        keys: &[
            text("address", "ADDR:PORT", "Where they are served by HTTP"),
            text("live_page", "WHO", "Who sees the live page there: loopback, any or off"),
        ],
    },
    Noun {
        name: "log",
        about: "The log",
        place: &["log"],
        id: None,
        in_subsystem: false,
        keys: &[text(
            "slow",
            "TIME",
            "Log each command that takes this long or longer, such as 10ms; off for none",
        )],
    },
];

impl Noun {
    /// The noun of this name, also in the plural.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        NOUNS.iter().find(|noun| noun.name == name || name.strip_suffix('s') == Some(noun.name))
    }
}
