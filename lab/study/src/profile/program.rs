//! Function names of a program or a library, from its ELF file.
//!
//! An address has a name for each function inlined there, from the line tables, and the name of the function in the symbol
//! table. Line tables have function names without their module, which follows from the path of the source. The C library of
//! most distributions names only what it exports: its copying functions, which it chooses at its start, are found through their
//! address in this process and the unwind tables.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use gimli::{BaseAddresses, CieOrFde, EhFrame, EndianArcSlice, RunTimeEndian, SectionId, UnwindSection};
use object::{Object, ObjectSection, ObjectSegment};

type Reader = EndianArcSlice<RunTimeEndian>;

/// Inlined functions that are named at an address, at most.
const INLINED_MAX: usize = 64;

/// The names of a program or library.
pub(super) struct Program {
    /// Of each segment: where it is in the file, and its address.
    segments: Vec<(Range<u64>, u64)>,
    symbols: Vec<(Range<u64>, String)>,
    lines: Option<addr2line::Context<Reader>>,
}

impl Program {
    /// Reads a file; `None` if it is not an ELF file, or cannot be read.
    pub(super) fn load(path: &Path) -> Option<Self> {
        let bytes = std::fs::read(path).ok()?;
        let file = object::File::parse(&*bytes).ok()?;
        let segments = file.segments().map(|segment| {
            let (offset, size) = segment.file_range();
            (offset..offset + size, segment.address())
        });
        let mut program = Self { segments: segments.collect(), symbols: symbols(&file), lines: lines(&file) };
        program.add_copying(path, &file);
        Some(program)
    }

    /// Whether it has a symbol table or line tables, so that most addresses have a name.
    pub(super) fn is_named(&self) -> bool {
        self.lines.is_some() || !self.symbols.is_empty()
    }

    /// The names at an offset of the file, the innermost inlined function first.
    pub(super) fn names(&self, offset: u64) -> Vec<String> {
        let Some(address) = self.address(offset) else { return Vec::new() };
        let mut names = Vec::new();
        if let Some(lines) = &self.lines
            && let Ok(mut frames) = lines.find_frames(address).skip_all_loads()
        {
            while let (Ok(Some(frame)), true) = (frames.next(), names.len() < INLINED_MAX) {
                let function = frame.function.as_ref().and_then(|function| function.raw_name().ok());
                let source = frame.location.and_then(|location| location.file);
                names.extend(function.zip(source).and_then(|(function, source)| path_of(source, &function)));
            }
        }
        names.extend(self.symbol(address).map(str::to_owned));
        names
    }

    fn address(&self, offset: u64) -> Option<u64> {
        let (range, address) = self.segments.iter().find(|(range, _)| range.contains(&offset))?;
        Some(address + (offset - range.start))
    }

    fn symbol(&self, address: u64) -> Option<&str> {
        let after = self.symbols.partition_point(|(range, _)| range.start <= address);
        let (range, name) = &self.symbols[after.checked_sub(1)?];
        range.contains(&address).then_some(name)
    }

    /// Adds the functions that copy in this process, if they are of this file and have no name.
    fn add_copying(&mut self, path: &Path, file: &object::File<'_>) {
        let Ok(maps) = super::maps::Maps::of(std::process::id()) else { return };
        let functions = [
            ("memmove", libc::memmove as *const () as usize),
            ("memcpy", libc::memcpy as *const () as usize),
            ("memset", libc::memset as *const () as usize),
        ];
        let ours = functions.into_iter().filter_map(|(name, address)| {
            let (of, offset) = maps.find(address as u64)?;
            (Path::new(of) == path).then(|| Some((name, self.address(offset)?)))?
        });
        let unnamed: Vec<_> = ours.filter(|(_, address)| self.symbol(*address).is_none()).collect();
        if unnamed.is_empty() {
            return;
        }
        for range in unwind_ranges(file).unwrap_or_default() {
            if let Some((name, _)) = unnamed.iter().find(|(_, address)| range.contains(address)) {
                self.symbols.push((range, (*name).to_owned()));
            }
        }
        self.symbols.sort_by_key(|(range, _)| range.start);
    }
}

/// The functions of the symbol table; of the exported symbols if there is none.
fn symbols(file: &object::File<'_>) -> Vec<(Range<u64>, String)> {
    use object::{ObjectSymbol, SymbolKind};
    let named = |symbol: object::Symbol<'_, '_>| {
        let is_function = symbol.kind() == SymbolKind::Text && symbol.size() > 0 && symbol.is_definition();
        let range = symbol.address()..symbol.address() + symbol.size();
        is_function.then_some((range, format!("{:#}", rustc_demangle::demangle(symbol.name().ok()?))))
    };
    let mut symbols: Vec<_> = file.symbols().filter_map(named).collect();
    if symbols.is_empty() {
        symbols = file.dynamic_symbols().filter_map(named).collect();
    }
    symbols.sort_by_key(|(range, _)| range.start);
    symbols.dedup_by_key(|(range, _)| range.start);
    symbols
}

/// The line tables, if there are any.
fn lines(file: &object::File<'_>) -> Option<addr2line::Context<Reader>> {
    file.section_by_name(".debug_line")?;
    let section = |id: SectionId| -> Result<Reader, gimli::Error> { Ok(section(file, id.name())) };
    addr2line::Context::from_dwarf(gimli::Dwarf::load(section).ok()?).ok()
}

/// A section's content; nothing if it is absent or compressed.
fn section(file: &object::File<'_>, name: &str) -> Reader {
    let data = file.section_by_name(name).and_then(|section| section.data().ok()).unwrap_or_default();
    EndianArcSlice::new(Arc::from(data), endian(file))
}

fn endian(file: &object::File<'_>) -> RunTimeEndian {
    if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big }
}

/// The address ranges of all functions with unwind tables, in the order of the file.
fn unwind_ranges(file: &object::File<'_>) -> Option<Vec<Range<u64>>> {
    let section = file.section_by_name(".eh_frame")?;
    let mut bases = BaseAddresses::default().set_eh_frame(section.address());
    if let Some(text) = file.section_by_name(".text") {
        bases = bases.set_text(text.address());
    }
    let frames = EhFrame::new(section.data().ok()?, endian(file));
    let mut entries = frames.entries(&bases);
    let mut ranges = Vec::new();
    while let Ok(Some(entry)) = entries.next() {
        if let CieOrFde::Fde(partial) = entry
            && let Ok(entry) = partial.parse(EhFrame::cie_from_offset)
        {
            ranges.push(entry.initial_address()..entry.end_address());
        }
    }
    Some(ranges)
}

/// Path of a function in the manner of Rust, from the path of its source: `crates/host/host/src/lane.rs` and `poll` are
/// `nvlane_host::lane::poll`.
fn path_of(source: &str, function: &str) -> Option<String> {
    let function = function.split('<').next().unwrap_or(function);
    let (before, inside) = source.rsplit_once("/src/").or_else(|| source.rsplit_once("/c_src/"))?;
    let folder = before.rsplit('/').next().unwrap_or(before);
    // `crates/FLOOR/NAME` and `lab/NAME` are ours.
    let mut above = before.rsplit('/').skip(1);
    let name = match (above.next(), above.next()) {
        (Some("lab"), _) | (Some(_), Some("crates")) => {
            let name = folder.replace('-', "_");
            if name.starts_with("nvlane") { name } else { format!("nvlane_{name}") }
        }
        // Of the registry: NAME-VERSION.
        _ => folder.rsplit_once('-').map_or(folder, |(name, _)| name).replace('-', "_"),
    };
    let modules = inside.strip_suffix(".rs").unwrap_or(inside).split('/');
    let modules = modules.filter(|module| !matches!(*module, "lib" | "main" | "mod"));
    let parts = std::iter::once(name.as_str()).chain(modules).chain([function]);
    Some(parts.collect::<Vec<_>>().join("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_and_a_function_are_a_path() {
        for (source, function, path) in [
            (
                "/build/crates/host/host/src/lane_core.rs",
                "on_bytes<B, F>",
                "nvlane_host::lane_core::on_bytes",
            ),
            ("crates/programs/load/src/runner/mod.rs", "run", "nvlane_load::runner::run"),
            ("/build/lab/nvlane-lab/src/main.rs", "main", "nvlane_lab::main"),
            ("crates/programs/nvlane/src/main.rs", "main", "nvlane::main"),
            (
                "/home/user/.cargo/registry/src/index/rustix-1.1.6/src/net/send_recv/mod.rs",
                "recv<T>",
                "rustix::net::send_recv::recv",
            ),
            (
                "/home/user/.cargo/registry/src/index/io-uring-0.7.15/src/submit.rs",
                "enter",
                "io_uring::submit::enter",
            ),
            ("/rustc/59807616e1fa/library/core/src/cmp.rs", "le<isize, isize>", "core::cmp::le"),
        ] {
            assert_eq!(path_of(source, function).as_deref(), Some(path), "{source}");
        }
        assert_eq!(path_of("../sysdeps/x86_64/memmove.S", "memmove"), None);
    }

    #[test]
    fn our_own_functions_have_names() {
        let path = std::env::current_exe().unwrap();
        let program = Program::load(&path).unwrap();
        assert!(program.is_named());
        let maps = super::super::maps::Maps::of(std::process::id()).unwrap();
        let (_, offset) = maps.find(path_of as *const () as u64).unwrap();
        let names = program.names(offset);
        assert!(names.last().unwrap().starts_with("nvlane_study::profile::program::path_of"), "{names:?}");
    }

    #[test]
    fn the_copying_function_of_the_c_library_has_a_name() {
        let maps = super::super::maps::Maps::of(std::process::id()).unwrap();
        let Some((path, offset)) = maps.find(libc::memmove as *const () as u64) else { return };
        let names = Program::load(Path::new(path)).unwrap().names(offset);
        assert!(
            names.iter().any(|name| name.contains("memmove") || name.contains("memcpy")),
            "{path}: {names:?}"
        );
    }

    #[test]
    fn what_is_no_program_has_no_names() {
        assert!(Program::load(Path::new("/proc/self/maps")).is_none());
        assert!(Program::load(Path::new("/no/such/file")).is_none());
    }
}
