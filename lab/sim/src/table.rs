//! Prints the coverage of runs: points, and a table of the ends of commands.

use std::collections::BTreeMap;

use nvlane_sim::{Coverage, Ending, Point};

/// Points that ten thousand seeds must reach.
const COVERAGE: &str = include_str!("../coverage.txt");

/// The same for runs with key-value namespaces.
const COVERAGE_OF_KEYS: &str = include_str!("../coverage-keys.txt");

/// Prints the points that were reached. Returns whether these are all of the lists: `has_keys` for both.
pub(crate) fn print(coverage: &Coverage, has_keys: bool) -> bool {
    let mut ends = BTreeMap::<&str, Vec<(u64, Ending, &str)>>::new();
    for (point, count) in coverage.iter() {
        match point {
            Point::End { command, outcome, cause } => {
                ends.entry(command).or_default().push((count, outcome, cause));
            }
            _ => println!("{count:>10}  {point}"),
        }
    }
    println!("\n{:<20} {:>10}  {:>7}  {:<44}  cause", "command", "count", "share", "outcome");
    for (command, mut rows) in ends {
        rows.sort_unstable_by(|a, b| b.cmp(a));
        let all: u64 = rows.iter().map(|(count, ..)| count).sum();
        println!("{command:<20} {all:>10}");
        for (count, outcome, cause) in rows {
            // Counts of a run fit a double.
            #[allow(clippy::cast_precision_loss)]
            let share = count as f64 * 100.0 / all as f64;
            println!("{:<20} {count:>10}  {share:>5.1} %  {outcome:<44}  {cause}", "");
        }
    }
    let mut missing = coverage.missing(COVERAGE);
    if has_keys {
        missing.extend(coverage.missing(COVERAGE_OF_KEYS));
    }
    missing.iter().for_each(|point| println!("NOT REACHED  {point}"));
    missing.is_empty()
}
