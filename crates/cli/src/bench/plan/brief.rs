//! What is left out where time is short: in quick runs, and over one of several paths.

use tautline_baseline::xdp::FULL;

use super::super::case::{Mode, Shared, Style, System};
use super::super::only::Only;
use super::costs::is_costly;
use super::{Cell, Extent, Here, Load, Test};

/// Leaves out what such a run has no time for; a row whose limit is left out has none.
///
/// Costly experiments are part of full runs, and of those in which something is asked for by name.
pub fn shorten(cells: &mut Vec<Cell>, extent: Extent, here: &Here, only: &Only) {
    let costly = |cell: &Cell| is_costly(cell) && (extent != Extent::Quick || !only.is_everything());
    if here.brief {
        cells.retain(|cell| costly(cell) || is_brief(cell));
    }
    if extent == Extent::Quick {
        let wanted = |cell: &Cell| {
            !is_costly(cell) && is_quick(cell) && (here.xdp || !here.brief || is_size_bound(cell))
        };
        cells.retain(|cell| costly(cell) || wanted(cell));
    }
    let all = cells.clone();
    for cell in cells {
        cell.limit = cell.limit.filter(|_| all.iter().any(|other| cell.is_limited_by(other)));
    }
}

/// Whether a cell is measured over each of several paths.
fn is_brief(cell: &Cell) -> bool {
    let sizes: &[usize] = match cell.test {
        Test::Protection => return true,
        Test::Latency => &[8, 64, 4 << 10, 64 << 10, 1 << 20],
        Test::Bandwidth => &[1 << 10, 4 << 10, 64 << 10, 1 << 20, FULL],
        Test::Rate | Test::Cpu | Test::Paced | Test::Calls => return cell.load == Load::Idle,
        _ => return false,
    };
    let main = match cell.system {
        System::Taut { security, .. } => security != Mode::Open,
        System::Memory { style, .. } => style == Style::Put,
        System::Datagrams { .. } => false,
        _ => true,
    };
    cell.load == Load::Idle && !cell.warm && main && sizes.contains(&cell.bytes)
}

/// Whether a larger frame can make a difference.
fn is_size_bound(cell: &Cell) -> bool {
    cell.bytes > 1 << 10 && matches!(cell.test, Test::Latency | Test::Bandwidth | Test::Protection)
}

/// Whether a cell is part of a quick run: few sizes for most systems, more for ours and their limits.
fn is_quick(cell: &Cell) -> bool {
    let default = match cell.system {
        System::Taut { security, .. } => security == Mode::Fabric,
        _ => true,
    };
    match cell.test {
        Test::Latency if cell.bytes == 4 << 20 => matches!(cell.system, System::Lent),
        Test::Latency => default && ![0, 16 << 10].contains(&cell.bytes) || cell.bytes == 64,
        Test::Bandwidth if [64 << 10, 1 << 20].contains(&cell.bytes) => true,
        Test::Bandwidth => match cell.system {
            System::Taut { .. } | System::Gso { .. } => default && is_small(cell.bytes),
            System::Shared { limit } => limit == Shared::TwoCopyStream && is_small(cell.bytes),
            System::Memory { style, .. } => matches!(style, Style::Put | Style::Queue),
            System::Xdp { .. } => true,
            _ => false,
        },
        Test::Guarantees => cell.bytes != 8 << 10,
        _ => true,
    }
}

fn is_small(bytes: usize) -> bool {
    bytes <= 4 << 10
}
