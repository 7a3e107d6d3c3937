//! Tables: as Markdown, so that they can be pasted into a report.

use comfy_table::{CellAlignment, Table, presets};

/// Creates a table. The columns of numbers are aligned to the right.
pub(crate) fn new(heads: &[&str], numbers: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(heads.iter().copied());
    for (column, head) in table.column_iter_mut().zip(heads) {
        if numbers.contains(head) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
