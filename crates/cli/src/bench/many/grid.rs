//! The grid of the halo exchange: whole numbers, so that the result does not depend on how it is divided.

/// The side of the grid.
pub const SIDE: usize = 256;
/// Cells of a row, with one more at each end.
const ROW: usize = SIDE + 2;

/// Some rows of the grid, with the row before them and the one after them.
pub struct Grid {
    cells: Vec<u32>,
    next: Vec<u32>,
    rows: usize,
}

impl Grid {
    /// Rows `first` to `end`, at the beginning.
    pub fn new(first: usize, end: usize) -> Grid {
        let rows = end - first;
        let mut cells = vec![0_u32; (rows + 2) * ROW];
        for r in 1..=rows {
            for c in 1..=SIDE {
                let number = ((first + r - 1) * SIDE + c) as u32;
                cells[r * ROW + c] = number.wrapping_mul(2_654_435_761) >> 2;
            }
        }
        Grid { next: cells.clone(), cells, rows }
    }

    /// How many rows there are, without those before and after.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// A row; 0 is the one before the others.
    pub fn row(&self, r: usize) -> &[u32] {
        &self.cells[r * ROW + 1..r * ROW + 1 + SIDE]
    }

    pub fn row_mut(&mut self, r: usize) -> &mut [u32] {
        &mut self.cells[r * ROW + 1..r * ROW + 1 + SIDE]
    }

    /// Every cell becomes the mean of its four neighbours.
    pub fn step(&mut self) {
        for r in 1..=self.rows {
            let (above, rest) = self.cells[(r - 1) * ROW..(r + 2) * ROW].split_at(ROW);
            let (here, below) = rest.split_at(ROW);
            for (c, cell) in self.next[r * ROW + 1..r * ROW + 1 + SIDE].iter_mut().enumerate() {
                let sum =
                    above[c + 1].wrapping_add(below[c + 1]).wrapping_add(here[c]).wrapping_add(here[c + 2]);
                *cell = sum / 4;
            }
        }
        std::mem::swap(&mut self.cells, &mut self.next);
    }

    pub fn sum(&self) -> u64 {
        (1..=self.rows).flat_map(|r| self.row(r)).map(|cell| u64::from(*cell)).sum()
    }
}

/// The sum of the whole grid after this many steps.
pub fn sum_after(steps: u64) -> u64 {
    let mut grid = Grid::new(0, SIDE);
    (0..steps).for_each(|_| grid.step());
    grid.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_grid_give_the_result_of_the_whole() {
        let mut parts = [(0, 85), (85, 170), (170, SIDE)].map(|(first, end)| Grid::new(first, end));
        for _ in 0..5 {
            for below in 1..parts.len() {
                let (up, down) = parts.split_at_mut(below);
                let (upper, lower) = (&mut up[below - 1], &mut down[0]);
                let last = upper.rows();
                lower.row_mut(0).copy_from_slice(upper.row(last));
                upper.row_mut(last + 1).copy_from_slice(lower.row(1));
            }
            parts.iter_mut().for_each(Grid::step);
        }
        assert_eq!(parts.iter().map(Grid::sum).sum::<u64>(), sum_after(5));
        assert_ne!(sum_after(5), sum_after(4));
    }
}
