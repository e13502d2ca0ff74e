//! Counts over time in a bounded number of columns: when a log turns out to be longer, the
//! columns become wider.

/// The most columns.
const MAX_COLUMNS: usize = 240;

/// The widths of columns in seconds, each a multiple of the one before. Beyond the last
/// they double.
const WIDTHS: [u64; 13] = [
    1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400,
];

/// Counts of two kinds over time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Chart {
    /// The width of a column in seconds.
    width: u64,
    /// The first column, as a number of widths since the epoch.
    first: u64,
    columns: Vec<Column>,
}

/// A column.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) requests: u64,
    pub(super) marked: u64,
}

impl Chart {
    /// Counts a request, which is marked (refused, say) or not. Times never decrease.
    pub(super) fn add(&mut self, at_us: u64, is_marked: bool) {
        let second = at_us / 1_000_000;
        if self.columns.is_empty() {
            (self.width, self.first) = (1, second);
        }
        let mut index = (second / self.width).saturating_sub(self.first);
        while index >= MAX_COLUMNS as u64 {
            self.widen();
            index = (second / self.width).saturating_sub(self.first);
        }
        let index = usize::try_from(index).expect("below the most columns");
        if index >= self.columns.len() {
            self.columns.resize(index + 1, Column::default());
        }
        self.columns[index].requests += 1;
        self.columns[index].marked += u64::from(is_marked);
    }

    fn widen(&mut self) {
        let next = WIDTHS.iter().copied().find(|width| *width > self.width);
        let next = next.unwrap_or(self.width * 2);
        let factor = next / self.width;
        let first = self.first / factor;
        let mut columns: Vec<Column> = Vec::new();
        for (number, column) in (self.first..).zip(&self.columns) {
            let index = usize::try_from(number / factor - first).expect("fewer than before");
            if index >= columns.len() {
                columns.resize(index + 1, Column::default());
            }
            columns[index].requests += column.requests;
            columns[index].marked += column.marked;
        }
        *self = Self {
            width: next,
            first,
            columns,
        };
    }

    /// The width of a column in seconds.
    pub(super) fn width(&self) -> u64 {
        self.width
    }

    /// When the first column begins.
    pub(super) fn start_us(&self) -> u64 {
        self.first * self.width * 1_000_000
    }

    pub(super) fn columns(&self) -> &[Column] {
        &self.columns
    }
}

/// A line of block characters, at most so many, for the largest value of each column.
pub(super) fn sparkline(values: &[u64], most: usize) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let per = values.len().div_ceil(most).max(1);
    let sums: Vec<u64> = values.chunks(per).map(|some| some.iter().sum()).collect();
    let largest = sums.iter().copied().max().unwrap_or(0);
    sums.iter()
        .map(|sum| match sum {
            0 => ' ',
            sum => {
                let eighths = (u128::from(*sum) * 8).div_ceil(u128::from(largest));
                BLOCKS[usize::try_from(eighths).map_or(7, |it| it.clamp(1, 8) - 1)]
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stay_few_and_lose_nothing() {
        const START_US: u64 = 1_795_000_000_000_000;
        for gap_us in [1_000, 1_000_000, 7_000_000, 61_000_000, 86_400_000_000 * 30] {
            let mut chart = Chart::default();
            for number in 0..10_000 {
                chart.add(START_US + number * gap_us, number % 10 == 0);
            }
            let columns = chart.columns();
            assert!(columns.len() <= MAX_COLUMNS, "{}", columns.len());
            let sum: u64 = columns.iter().map(|column| column.requests).sum();
            let marked: u64 = columns.iter().map(|column| column.marked).sum();
            assert_eq!((sum, marked), (10_000, 1_000));
            let end = chart.start_us() + chart.width() * 1_000_000 * columns.len() as u64;
            assert!(chart.start_us() <= START_US && end > START_US + 9_999 * gap_us);
        }
    }

    #[test]
    fn sparklines_show_the_largest_as_the_tallest() {
        tidegate_testkit::cases::rows(include_str!("../rows.txt"), "sparklines", |row| {
            let (most, values) = row.split_once(':').unwrap();
            let values = values.split_whitespace().map(|it| it.parse().unwrap());
            sparkline(&values.collect::<Vec<_>>(), most.parse().unwrap())
        });
        assert_eq!(sparkline(&[0, 0], 10), "  ");
    }
}
