//! `nvlane study` and `nvlane probe`: start the program `nvlane-lab`, which lies beside this one or on the path.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use command_line::exit::{Ended, Failure, Kind};

/// The program.
const LAB: &str = "nvlane-lab";

/// The arguments that `nvlane-lab` reads itself.
#[derive(Debug, Args)]
pub(crate) struct LabArguments {
    /// Options of nvlane-lab: --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _words: Vec<OsString>,
}

/// Becomes `nvlane-lab` with the arguments of this process.
pub(crate) fn become_lab() -> Ended {
    let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join(LAB)));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(LAB));
    let error = Command::new(&program).args(std::env::args_os().skip(1)).exec();
    Err(match error.kind() {
        io::ErrorKind::NotFound => Failure::usage(
            "study and probe are commands of the program nvlane-lab, which is neither beside this one nor on the path: \
             cargo install --path lab/nvlane-lab, from the source of this version",
        ),
        _ => Failure::new(Kind::Failed, format!("cannot start {}: {error}", program.display())),
    })
}
