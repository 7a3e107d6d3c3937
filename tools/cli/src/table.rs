//! Tables.

use comfy_table::{CellAlignment, Table, TableStyle, presets};

use crate::output::printable;

/// A table as Markdown, so that it can be pasted into a report. The columns of numbers are aligned
/// to the right.
pub(crate) fn markdown(heads: &[&str], numbers: &[&str]) -> Table {
    table(presets::ASCII_MARKDOWN, heads, numbers)
}

/// A table without lines, whose cells can be copied.
pub(crate) fn plain(heads: &[&str], numbers: &[&str]) -> Table {
    table(presets::NOTHING, heads, numbers)
}

/// A text that is not ours as a cell of Markdown.
pub(crate) fn cell(text: &str) -> String {
    printable(text).replace('|', "\\|")
}

fn table(style: TableStyle, heads: &[&str], numbers: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(style).set_header(heads.iter().copied());
    for (column, head) in table.column_iter_mut().zip(heads) {
        if numbers.contains(head) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
