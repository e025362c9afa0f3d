//! `results.csv`: every number of every round, one per row, for spreadsheets.

use std::fmt::Write;

use crate::results::Study;

/// The names of the columns.
const HEAD: &str = "experiment,cell,round,value,number,discarded";

/// The rows of a study. A discarded round has a row with the reason and no number. Between two machines each row ends with
/// both.
pub fn of(study: &Study) -> String {
    let (more, machines) = match &study.target_machine {
        None => ("", String::new()),
        Some(machine) => {
            let host = field(&machine.host_in_words(&study.environment));
            (",host,target", format!(",{host},{}", field(&machine.target_in_words())))
        }
    };
    let mut text = format!("{HEAD}{more}\n");
    let experiment = field(study.about.name);
    for cell in &study.measured.cells {
        let name = field(&cell.cell.name);
        for (round, values) in cell.rounds.iter().enumerate() {
            for (value, number) in values {
                let _ = writeln!(text, "{experiment},{name},{round},{},{number},{machines}", field(value));
            }
        }
        for rejected in &cell.rejected {
            let reason = field(&rejected.reason.to_string());
            let _ = writeln!(text, "{experiment},{name},{},,,{reason}{machines}", rejected.round);
        }
    }
    text
}

/// A field, quoted where it has to be (RFC 4180).
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use load::disturbance::Disturbance;

    use super::*;
    use crate::cell::Values;
    use crate::results::example;

    #[test]
    fn every_round_of_every_cell_has_its_rows() {
        let mut study = example::study();
        study.measured.cells[0].cell.name = "one, \"alone\"".into();
        study.measured.cells[0].push(Values::from([("iops", 0.0)]), Disturbance::default());
        let text = of(&study);
        let mut rows = text.lines();
        assert_eq!(rows.next(), Some("experiment,cell,round,value,number,discarded"));
        assert_eq!(rows.next(), Some("example,\"one, \"\"alone\"\"\",0,iops,100000,"));
        assert_eq!(rows.next(), Some("example,\"one, \"\"alone\"\"\",0,p50_us,8.5,"));
        assert_eq!(text.lines().count(), 1 + 2 * 3 * 2 + 1);
        study.target_machine = Some(crate::two_machines::example::machine());
        let between_two = of(&study);
        let fields: Vec<_> = between_two.lines().map(|row| row.ends_with("nvlane 0.1.0\"")).collect();
        assert!(between_two.starts_with("experiment,cell,round,value,number,discarded,host,target\n"));
        assert!(fields[1..].iter().all(|is_named| *is_named), "{between_two}");
        let discarded = text.lines().find(|row| row.starts_with("example,\"one, \"\"alone\"\"\",3,,,"));
        assert!(discarded.is_some_and(|row| !row.ends_with(",,,")), "{text}");
    }
}
