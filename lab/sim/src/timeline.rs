//! The events of a run, one line for each: when, where, to which command, and what.
//!
//! Most events have nothing to do with the finding. Of those that name a command or a block only those are printed that
//! concern the finding: the commands on its block, or on those of its command, all flushes, the operations of the disk
//! there, and events of the world.

use std::collections::{BTreeMap, BTreeSet};

/// The subject of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// Everything, such as a fault.
    World,
    /// Nothing in particular, such as bytes on their way.
    Detail,
    /// A command of a user, by its number.
    Command(u64),
    /// A block as a command saw it.
    Block(u64),
    /// Blocks on the disk.
    Disk(std::ops::Range<u64>),
    DiskFlush,
}

#[derive(Clone, Debug)]
struct Line {
    at_ns: u64,
    place: String,
    about: About,
    text: String,
}

/// Blocks of a command; all for a flush.
#[derive(Clone, Debug)]
struct Extent {
    lbas: Vec<u64>,
    is_flush: bool,
}

/// The events of a run, in their order.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    lines: Vec<Line>,
    extents: BTreeMap<u64, Extent>,
}

impl Timeline {
    pub(crate) fn add(&mut self, at_ns: u64, place: String, about: About, text: String) {
        self.lines.push(Line { at_ns, place, about, text });
    }

    /// The place of the next line.
    pub(crate) fn next(&self) -> usize {
        self.lines.len()
    }

    /// Adds a line, or replaces the text of an existing one.
    pub(crate) fn put(&mut self, at: usize, at_ns: u64, place: String, about: About, text: String) {
        match self.lines.get_mut(at) {
            Some(line) => line.text = text,
            None => self.add(at_ns, place, about, text),
        }
    }

    /// A command begins, on these blocks of the model.
    pub(crate) fn add_command(&mut self, number: u64, lbas: Vec<u64>, is_flush: bool) {
        self.extents.insert(number, Extent { lbas, is_flush });
    }

    /// Whether nothing was kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The lines that concern a finding; all of them without one.
    pub fn lines(&self, finding: Option<&str>) -> impl Iterator<Item = String> {
        let focus = finding.map(|finding| Focus::new(self, finding));
        let is_shown = move |line: &&Line| focus.as_ref().is_none_or(|focus| focus.concerns(&line.about));
        let head = format!("{:>14}  {:<22} {:>7}  what happens", "time, s", "where", "command");
        std::iter::once(head).chain(self.lines.iter().filter(is_shown).map(Line::text))
    }
}

impl Line {
    fn text(&self) -> String {
        let (seconds, rest) = (self.at_ns / 1_000_000_000, self.at_ns % 1_000_000_000);
        let command =
            if let About::Command(number) = self.about { number.to_string() } else { String::new() };
        format!("{seconds:>4}.{rest:09}  {:<22} {command:>7}  {}", self.place, self.text)
    }
}

/// The subject of a finding.
struct Focus {
    /// `None` if the finding names neither a command nor a block: all commands.
    commands: Option<BTreeSet<u64>>,
    lbas: BTreeSet<u64>,
}

impl Focus {
    fn new(timeline: &Timeline, finding: &str) -> Self {
        let named: Vec<u64> =
            numbers_after(finding, "command").chain(numbers_after(finding, "commands")).collect();
        let mut lbas: BTreeSet<u64> = numbers_after(finding, "block").collect();
        if lbas.is_empty() {
            let of = |number| timeline.extents.get(number).map(|extent| extent.lbas.clone());
            lbas = named.iter().filter_map(of).flatten().collect();
        }
        let is_near = |extent: &Extent| extent.is_flush || extent.lbas.iter().any(|lba| lbas.contains(lba));
        let near = timeline.extents.iter().filter(|(_, extent)| is_near(extent)).map(|(number, _)| *number);
        let commands = near.chain(named.iter().copied()).collect();
        Self { commands: (!named.is_empty() || !lbas.is_empty()).then_some(commands), lbas }
    }

    fn concerns(&self, about: &About) -> bool {
        match about {
            About::World | About::DiskFlush => true,
            About::Detail => false,
            About::Command(number) => self.commands.as_ref().is_none_or(|commands| commands.contains(number)),
            About::Block(lba) => self.lbas.contains(lba),
            About::Disk(lbas) => self.commands.is_none() || lbas.clone().any(|lba| self.lbas.contains(&lba)),
        }
    }
}

/// Blocks in words.
pub(crate) fn blocks(lbas: std::ops::Range<u64>) -> String {
    match lbas.end - lbas.start {
        0 => "no block".into(),
        1 => format!("block {}", lbas.start),
        _ => format!("blocks {} to {}", lbas.start, lbas.end - 1),
    }
}

/// The numbers that follow a word in a text.
fn numbers_after<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = u64> + 'a {
    let is_end = |letter: char| !letter.is_ascii_digit();
    let words = text.split_whitespace().zip(text.split_whitespace().skip(1));
    words
        .filter(move |(before, _)| *before == word)
        .filter_map(move |(_, number)| number.trim_end_matches(is_end).parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_concerns_a_finding_is_shown() {
        let mut timeline = Timeline::default();
        timeline.add_command(1, vec![4, 5], false);
        timeline.add_command(2, vec![9], false);
        timeline.add_command(3, vec![], true);
        for (at_ns, about) in [
            (10, About::World),
            (11, About::Detail),
            (12, About::Command(1)),
            (13, About::Command(2)),
            (14, About::Command(3)),
            (15, About::Disk(5..8)),
            (16, About::Disk(8..10)),
            (17, About::Block(4)),
        ] {
            timeline.add(at_ns, "here".into(), about, format!("event {at_ns}"));
        }
        let shown = |finding: Option<&str>| -> Vec<String> {
            timeline.lines(finding).skip(1).map(|line| line[line.len() - 2..].to_owned()).collect()
        };
        assert_eq!(shown(None).len(), 8);
        assert_eq!(shown(Some("command 7: block 5: read value 0x200")), ["10", "12", "14", "15"]);
        assert_eq!(shown(Some("command 2: ended with")), ["10", "13", "14", "16"]);
        assert_eq!(shown(Some("reactor 0 has stopped")), ["10", "12", "13", "14", "15", "16"]);
    }
}
