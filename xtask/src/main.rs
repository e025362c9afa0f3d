//! Tasks of the repository, in one program: `cargo xtask help`.
#![forbid(unsafe_code)]

mod bench;
mod c_library;
mod ceph;
mod check;
mod ci;
mod circles;
mod clients;
mod command;
mod coverage;
mod csi;
mod deny;
mod deps;
mod floors;
mod fuzz;
mod instructions;
mod interop;
mod miri;
mod mutants;
mod package;
mod product_bugs;
mod public_api;
mod sim;
mod soak;
mod sources;
mod step;
mod stranger;
mod syscalls;
mod torture;
mod trace;
mod wheel;

use std::process::ExitCode;

use clap::Parser;

/// Tasks of the repository
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Format, citations, import circles, lints (warnings denied), quick tests and documentation
    Check,
    /// Everything `make test` does, with the time each step took beside its budget
    Ci(ci::Options),
    /// Everything `make bench` does: what measures time, and the bars that hang on it
    Bench,
    /// Everything `make soak` does: judges that take too long for `make test`
    Soak(soak::Options),
    /// What the other tasks need: Debian packages, Rust components, the lab's kernels
    Deps,
    /// Instructions per command, compared with the accepted baseline: 1 % more is an error
    Instructions(instructions::Options),
    /// Behaviours between nvlane and stock Linux kernels, in emulated guests
    Interop(interop::Options),
    /// Memcached clients against a target, with their makers' tests; NBD clients on a bridge; programs over libnvlane
    Clients(clients::Options),
    /// RBD images of a real Ceph cluster behind a target; the cluster is started from the distribution's packages
    Ceph(ceph::Options),
    /// The driver for Kubernetes against a target, by csi-sanity, and its manifests, by kubeconform
    Csi,
    /// libnvlane as it is installed: lib/, include/nvlane.h, lib/pkgconfig/nvlane.pc
    CLibrary(c_library::Options),
    /// The header nvlane.h, made by cbindgen from the library's sources
    CHeader(c_library::HeaderOptions),
    /// libnvlane, and the engine with which the installed fio uses it: lib/fio/nvlane.so
    FioEngine(c_library::EngineOptions),
    /// libnvlane, and the plugin with which NIXL uses it: lib/nixl/libplugin_NVLANE.so
    NixlPlugin(c_library::PluginOptions),
    /// The code of the driver's protocol, from the definition of the Container Storage Interface
    CsiProto(csi::ProtoOptions),
    /// The real host and target under virtual time: many seeds, or one
    #[command(disable_help_flag = true)]
    Sim(sim::Options),
    /// Bugs planted in a copy of the product's own code, one at a time: the simulation or a test must find each
    ProductBugs(product_bugs::Options),
    /// A target killed at random moments under verified load, and started again
    #[command(disable_help_flag = true)]
    CrashLoop(torture::Options),
    /// A target flooded with half-open and slow connections, and a lane that reads meanwhile
    #[command(disable_help_flag = true)]
    Flood(torture::Options),
    /// Fuzzers of everything that comes from outside: all, or one
    Fuzz(fuzz::Options),
    /// Lines of `wire` and `proto` that their tests run
    Coverage,
    /// Changes of `wire` and `proto` that their tests do not notice; takes hours
    Mutants(mutants::Options),
    /// The unsafe crate under Miri (a nightly compiler), or memcheck
    Miri(miri::Options),
    /// The Python module: its wheel and source distribution, in target/wheels
    Wheel(wheel::Options),
    /// The examples of the host library in a project outside the workspace, against a target
    Stranger,
    /// Public API of the host library and its core, compared with their listings; needs cargo-public-api and a nightly
    /// compiler
    PublicApi(public_api::Options),
    /// System calls of a target, compared with packaging/system-calls.txt
    Syscalls,
    /// Citations and paths in documents: each resolves; implemented sections of the wire reference are cited and
    /// tested
    Trace(trace::Options),
    /// Import circles between the files of a crate: none but pairs that a comment explains
    Circles,
    /// Debian packages, an OCI image, and checks of both on clean systems
    Package(package::Options),
    /// Dependencies: licences, duplicates, sources, known vulnerabilities
    Deny,
}

fn main() -> ExitCode {
    let result = match Task::parse() {
        Task::Check => step::run_steps(check::STEPS),
        Task::Ci(options) => ci::run(&options),
        Task::Bench => bench::run(),
        Task::Soak(options) => soak::run(&options),
        Task::Deps => deps::install(),
        Task::Instructions(options) => instructions::run(&options),
        Task::Interop(options) => interop::run(&options),
        Task::Clients(options) => clients::run(&options),
        Task::Ceph(options) => ceph::judge(&options),
        Task::Csi => csi::judge(),
        Task::CLibrary(options) => c_library::install(&options),
        Task::CHeader(options) => c_library::header(&options),
        Task::FioEngine(options) => c_library::fio_engine(&options),
        Task::NixlPlugin(options) => c_library::nixl_plugin(&options),
        Task::CsiProto(options) => csi::proto(&options),
        Task::Sim(options) => sim::run(&options),
        Task::ProductBugs(options) => product_bugs::run(&options),
        Task::CrashLoop(options) => torture::crash_loop(&options),
        Task::Flood(options) => torture::flood(&options),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Coverage => coverage::run(),
        Task::Mutants(options) => mutants::run(&options),
        Task::Miri(options) => miri::run(&options),
        Task::Stranger => stranger::run(),
        Task::Wheel(options) => wheel::build(&options),
        Task::PublicApi(options) => public_api::run(&options),
        Task::Syscalls => syscalls::run(),
        Task::Trace(options) => trace::run(&options),
        Task::Circles => circles::run(),
        Task::Package(options) => package::run(&options),
        Task::Deny => deny::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
