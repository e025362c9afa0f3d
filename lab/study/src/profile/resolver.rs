//! Samples to layers and function names.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::kernel::KernelSymbols;
use super::layer::Layer;
use super::maps::{Maps, VDSO};
use super::program::Program;
use super::samples::Samples;
use super::table::{self, Place};

/// Names of everything that was sampled, read on first use.
#[derive(Default)]
pub(crate) struct Resolver {
    kernel: Option<KernelSymbols>,
    programs: HashMap<String, Option<Program>>,
    /// Layer and name of offsets in files.
    known: HashMap<(String, u64), (Layer, String)>,
}

/// Samples by layer and function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placed {
    counts: BTreeMap<(Layer, String), u64>,
    total: u64,
}

impl Placed {
    pub(crate) fn add(&mut self, layer: Layer, name: &str, count: u64) {
        *self.counts.entry((layer, name.to_owned())).or_default() += count;
        self.total += count;
    }

    /// Adds other samples.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (key, count) in &other.counts {
            *self.counts.entry(key.clone()).or_default() += count;
        }
        self.total += other.total;
    }

    /// Number of samples.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Number of samples of a layer.
    pub(crate) fn count(&self, layer: Layer) -> u64 {
        self.counts.iter().filter(|((of, _), _)| *of == layer).map(|(_, count)| count).sum()
    }

    /// Functions of a layer, the most frequent first.
    pub(crate) fn functions(&self, layer: Layer) -> Vec<(&str, u64)> {
        let of = self.counts.iter().filter(|((of, _), _)| *of == layer);
        let mut functions: Vec<_> = of.map(|((_, name), count)| (name.as_str(), *count)).collect();
        functions.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
        functions
    }
}

impl Resolver {
    /// Places the samples of a process with these mappings.
    pub(super) fn place(&mut self, samples: &Samples, maps: &Maps) -> Placed {
        let mut placed = Placed::default();
        for (frames, count) in &samples.kernel {
            let (layer, name) = self.of_kernel(frames);
            placed.add(layer, name, *count);
        }
        for (address, count) in &samples.user {
            let (layer, name) = self.of_program(*address, maps);
            placed.add(layer, &name, *count);
        }
        placed
    }

    /// Why some samples have no name.
    pub(super) fn limits(&self) -> Vec<String> {
        let mut limits = Vec::new();
        if self.kernel.as_ref().is_some_and(KernelSymbols::is_hidden) {
            limits.push(
                "/proc/kallsyms hides the kernel's functions (kernel.kptr_restrict, kernel.perf_event_paranoid), so their time is not named"
                    .to_owned(),
            );
        }
        let stripped =
            self.programs.iter().filter(|(_, program)| program.as_ref().is_none_or(|of| !of.is_named()));
        let mut stripped: Vec<_> = stripped.map(|(path, _)| path.as_str()).collect();
        stripped.sort_unstable();
        limits.extend(
            stripped.iter().map(|path| format!("{path} has no symbols, so its own time is not named")),
        );
        limits
    }

    /// The innermost function that the table gives to a layer. A function that the table does not know ends the search.
    fn of_kernel(&mut self, frames: &[u64]) -> (Layer, &str) {
        let symbols = self.kernel.get_or_insert_with(KernelSymbols::load);
        let mut first = None;
        for (index, address) in frames.iter().enumerate() {
            // A caller's address is behind its call.
            let Some(name) = symbols.find(address - u64::from(index > 0)) else { break };
            match table::of_kernel(name) {
                Some(Place::In(layer)) => return (layer, first.unwrap_or(name)),
                Some(Place::Caller) => first = first.or(Some(name)),
                None => return (Layer::Other, name),
            }
        }
        first.map_or((Layer::Unnamed, "[kernel]"), |name| (Layer::Other, name))
    }

    fn of_program(&mut self, address: u64, maps: &Maps) -> (Layer, String) {
        let Some((path, offset)) = maps.find(address) else {
            return (Layer::Unnamed, "[unknown]".to_owned());
        };
        let key = (path.to_owned(), offset);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let names = if path == VDSO {
            vec![VDSO.to_owned()]
        } else {
            let load = || Program::load(Path::new(path));
            let program = self.programs.entry(path.to_owned()).or_insert_with(load);
            program.as_ref().map(|program| program.names(offset)).unwrap_or_default()
        };
        let known = self.known.entry(key);
        known.or_insert_with(|| place_names(&names, path)).clone()
    }
}

/// The innermost of the names that the table gives to a layer, with the name of the function that contains it.
fn place_names(names: &[String], path: &str) -> (Layer, String) {
    let Some(name) = names.last() else { return (Layer::Unnamed, path.to_owned()) };
    let layer = names.iter().find_map(|name| match table::of_program(name) {
        Some(Place::In(layer)) => Some(layer),
        Some(Place::Caller) | None => None,
    });
    (layer.unwrap_or(Layer::Other), name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> (Layer, String) {
        place_names(&names.iter().map(ToString::to_string).collect::<Vec<_>>(), "/usr/bin/nvlane")
    }

    #[test]
    fn the_innermost_inlined_function_with_a_layer_decides() {
        let outer = "nvlane_load::runner::worker::Running<D>::give_out";
        assert_eq!(
            named(&["core::cmp::le", "nvlane_host::lane::submit", outer]),
            (Layer::Nvme, outer.into())
        );
        assert_eq!(named(&["zerocopy::read", outer]), (Layer::Application, outer.into()));
        assert_eq!(named(&["core::cmp::le"]), (Layer::Other, "core::cmp::le".into()));
        assert_eq!(named(&[]), (Layer::Unnamed, "/usr/bin/nvlane".into()));
    }

    #[test]
    fn helpers_of_the_kernel_belong_to_their_caller() {
        let names = ["_raw_spin_lock", "tcp_sendmsg", "strange", "do_syscall_64"];
        let [lock, send, strange, call] =
            [0x1000, 0x2000, 0x3000, 0x4000].map(|low| 0xffff_ffff_8100_0000_u64 + low);
        let text: String = [lock, send, strange, call]
            .iter()
            .zip(names)
            .map(|(at, name)| format!("{at:x} T {name}\n"))
            .collect();
        let mut resolver = Resolver { kernel: Some(KernelSymbols::parse(&text)), ..Resolver::default() };
        assert_eq!(resolver.of_kernel(&[lock + 5, send + 9, call + 1]), (Layer::Transmit, "_raw_spin_lock"));
        assert_eq!(resolver.of_kernel(&[send, call]), (Layer::Transmit, "tcp_sendmsg"));
        assert_eq!(resolver.of_kernel(&[lock, strange + 1, call]), (Layer::Other, "strange"));
        assert_eq!(resolver.of_kernel(&[lock]), (Layer::Other, "_raw_spin_lock"));
        // A call that is the last instruction of a function returns to the first of the next.
        assert_eq!(resolver.of_kernel(&[lock, strange]), (Layer::Transmit, "_raw_spin_lock"));
        let mut hidden = Resolver { kernel: Some(KernelSymbols::default()), ..Resolver::default() };
        assert_eq!(hidden.of_kernel(&[send]), (Layer::Unnamed, "[kernel]"));
        assert!(hidden.limits()[0].contains("kptr_restrict"));
    }

    #[test]
    fn functions_are_in_the_order_of_their_time() {
        let mut placed = Placed::default();
        placed.add(Layer::Receive, "tcp_ack", 3);
        placed.add(Layer::Receive, "tcp_v4_rcv", 5);
        let mut more = Placed::default();
        more.add(Layer::Receive, "tcp_ack", 4);
        more.add(Layer::Nvme, "poll", 1);
        placed.merge(&more);
        assert_eq!(placed.functions(Layer::Receive), [("tcp_ack", 7), ("tcp_v4_rcv", 5)]);
        assert_eq!((placed.total(), placed.count(Layer::Receive), placed.count(Layer::Copies)), (13, 12, 0));
    }
}
