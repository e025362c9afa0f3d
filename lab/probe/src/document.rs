//! docs/hostile-inputs.md, from which reports take the words of each row.

use serde::Serialize;

const TEXT: &str = include_str!("../../../docs/hostile-inputs.md");

/// What the document says of a row.
#[derive(Clone, Debug, Serialize)]
pub struct Words {
    /// Identifier of the row.
    pub id: &'static str,
    /// Number and title of the section that it is tried in.
    pub section: String,
    /// The input.
    pub sent: &'static str,
    /// The right reaction.
    pub right: &'static str,
    /// The reason, where the specification does not demand the reaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judgement: Option<&'static str>,
}

impl Words {
    /// The words of a row that is tried in this section.
    ///
    /// # Panics
    /// The document has no such row or section; a test looks up all.
    pub(crate) fn new(section: u8, id: &'static str) -> Self {
        let heading = format!("## {section}. ");
        let title = TEXT.lines().find_map(|line| line.strip_prefix(&heading)).expect("a section");
        let mut rows = TEXT.lines().map(|line| line.split('|').map(str::trim).skip(1));
        let mut cells = rows.find(|cells| cells.clone().next() == Some(id)).expect("a row").skip(1);
        let mut cell = || cells.next().expect("a row has five cells");
        let (sent, right, judgement) = (cell(), cell(), cell());
        let judgement = (!judgement.is_empty()).then_some(judgement);
        Self { id, section: format!("{section} {title}"), sent, right, judgement }
    }

    /// Whether one of these identifiers, in either case, names the row; without any, all rows are meant.
    pub fn is_among(&self, ids: &[String]) -> bool {
        ids.is_empty() || ids.iter().any(|id| id.eq_ignore_ascii_case(self.id))
    }
}
