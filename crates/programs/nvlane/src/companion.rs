//! Commands of programs of their own, which lie beside this one or on the path: `nvlane study` and `nvlane probe` of
//! `nvlane-lab`, `nvlane csi` of `nvlane-csi`.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use command_line::exit::{Ended, Failure, Kind};

/// A program that comes with this one.
pub(crate) struct Companion {
    name: &'static str,
    /// Its commands, as the subject of a sentence.
    commands: &'static str,
    /// How to install it.
    installation: &'static str,
}

/// Experiments and hostile input.
pub(crate) const LAB: Companion = Companion {
    name: "nvlane-lab",
    commands: "study and probe are commands",
    installation: "cargo install --path lab/nvlane-lab",
};

/// Volumes for Kubernetes.
pub(crate) const CSI: Companion = Companion {
    name: "nvlane-csi",
    commands: "csi is a command",
    installation: "cargo install --path crates/programs/csi",
};

/// The arguments that the program reads itself.
#[derive(Debug, Args)]
pub(crate) struct CompanionArguments {
    /// Options of that program: --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _words: Vec<OsString>,
}

impl Companion {
    /// Becomes the program with the arguments of this process.
    pub(crate) fn become_it(&self) -> Ended {
        let name = self.name;
        let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join(name)));
        let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(name));
        let error = Command::new(&program).args(std::env::args_os().skip(1)).exec();
        Err(match error.kind() {
            io::ErrorKind::NotFound => Failure::usage(format!(
                "{} of the program {name}, which is neither beside this one nor on the path: {}, from the source of this \
                 version, or its package",
                self.commands, self.installation
            )),
            _ => Failure::new(Kind::Failed, format!("cannot start {}: {error}", program.display())),
        })
    }
}
