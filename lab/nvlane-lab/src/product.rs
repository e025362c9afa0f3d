//! The program nvlane, whose targets and loads studies start.

use std::path::PathBuf;

use command_line::exit::Failure;

/// Its path: beside this program, else on the path.
pub(crate) fn product() -> Result<PathBuf, Failure> {
    let this = std::env::current_exe().ok();
    let beside = this.as_deref().and_then(|program| program.parent()).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = beside.into_iter().chain(std::env::split_paths(&path));
    directories.map(|directory| directory.join("nvlane")).find(|program| program.is_file()).ok_or_else(|| {
        Failure::usage(
            "there is no program nvlane beside this one or on the path: a study starts targets with it",
        )
    })
}
