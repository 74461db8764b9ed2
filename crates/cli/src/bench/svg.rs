//! Plots as inline SVG: lines over logarithmic axes, and bars. Colours and text come from the page's style
//! sheet.

use std::fmt::Write as _;

use super::table::{short, size};

/// A line of a plot.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Whether the line is ours: then it is drawn bold.
    pub ours: bool,
}

/// Where the axis of sizes ends, and how much room there is for names at least.
const END: f64 = 570.0;
const NAMES_MIN: f64 = 190.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;
/// Colours that the style sheet defines.
const COLOURS: usize = 8;
/// The width of a letter of a name, generously: fonts differ.
const LETTER: f64 = 7.4;
/// The width of bars and their figures.
const BARS: f64 = 510.0;

/// The room for the longest of these names.
fn room_for<'a>(names: impl Iterator<Item = &'a str>) -> f64 {
    LETTER * names.map(|name| name.chars().count()).max().unwrap_or(0) as f64
}

/// A range of values on one axis, as logarithms.
#[derive(Clone, Copy)]
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Axis> {
        let (low, high) =
            values.filter(|v| *v > 0.0).fold((f64::MAX, 0.0_f64), |(l, h), v| (l.min(v), h.max(v)));
        (low <= high).then(|| Axis { low: (low * 0.85).ln(), high: (high * 1.15).ln(), from, to })
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (value.ln() - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// Round numbers within the range: powers of ten, and of two and five times ten if there are few.
    fn ticks(&self) -> Vec<f64> {
        let decades = (self.high - self.low) / std::f64::consts::LN_10;
        let steps: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let first = (self.low / std::f64::consts::LN_10).floor() as i32;
        let last = (self.high / std::f64::consts::LN_10).ceil() as i32;
        let all = (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
        all.filter(|tick| (self.low..=self.high).contains(&tick.ln())).collect()
    }
}

/// Escapes text for use between tags.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Lines over message size; both axes are logarithmic.
pub fn lines(title: &str, unit: &str, lines: &[Line]) -> String {
    lines_over(title, unit, lines, size)
}

/// Lines over the number of something; both axes are logarithmic.
pub fn lines_over_many(title: &str, unit: &str, lines: &[Line]) -> String {
    lines_over(title, unit, lines, |many| many.to_string())
}

fn lines_over(title: &str, unit: &str, lines: &[Line], name: fn(usize) -> String) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter().filter(|p| p.0 > 0.0 && p.1 > 0.0));
    let x = Axis::new(points().map(|p| p.0), LEFT, END);
    let y = Axis::new(points().map(|p| p.1), HEIGHT - BOTTOM, TOP);
    let (Some(x), Some(y)) = (x, y) else { return String::new() };
    let names = room_for(lines.iter().map(|line| line.name.as_str()));
    let mut svg = open(title, END + (names + NAME_AT).max(NAMES_MIN), HEIGHT);
    for tick in y.ticks() {
        let at = y.at(tick);
        let _ =
            write!(svg, "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{END}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",);
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            short(tick)
        );
    }
    let mut sizes: Vec<usize> = points().map(|p| p.0 as usize).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for bytes in sizes {
        let at = x.at(bytes as f64);
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM + 18.0,
            name(bytes).replace(' ', "\u{a0}")
        );
    }
    let _ = write!(svg, "<text class=\"tick\" x=\"6\" y=\"{:.1}\">{unit}</text>", HEIGHT - 6.0);
    for (number, line) in lines.iter().enumerate() {
        draw(&mut svg, number, line, (x, y), name);
    }
    svg.push_str("</svg></figure>");
    svg
}

/// How far behind the end of the axis a name begins.
const NAME_AT: f64 = 38.0;

fn open(title: &str, width: f64, height: f64) -> String {
    let title = escape(title);
    format!(
        "<figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{title}\">"
    )
}

fn draw(svg: &mut String, number: usize, line: &Line, (x, y): (Axis, Axis), name: fn(usize) -> String) {
    let colour = number % COLOURS;
    let shown: Vec<_> = line.points.iter().filter(|p| p.0 > 0.0 && p.1 > 0.0).collect();
    let path: Vec<String> = shown.iter().map(|p| format!("{:.1},{:.1}", x.at(p.0), y.at(p.1))).collect();
    let class = if line.ours { "line ours" } else { "line" };
    let _ = write!(svg, "<polyline class=\"{class} c{colour}\" points=\"{}\"/>", path.join(" "));
    for p in &shown {
        let tip = format!("{}: {} at {}", line.name, short(p.1), name(p.0 as usize));
        let _ = write!(
            svg,
            "<circle class=\"dot c{colour}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"><title>{}</title></circle>",
            x.at(p.0),
            y.at(p.1),
            escape(&tip)
        );
    }
    let at = TOP + 8.0 + 18.0 * number as f64;
    let left = END + 14.0;
    let _ = write!(
        svg,
        "<line class=\"{class} c{colour}\" x1=\"{left}\" x2=\"{:.1}\" y1=\"{at}\" y2=\"{at}\"/>",
        left + 18.0
    );
    let _ = write!(
        svg,
        "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        END + NAME_AT,
        at + 4.0,
        escape(&line.name)
    );
}

/// A bar with a second, paler part up to another value.
pub struct Bar {
    pub name: String,
    pub value: f64,
    pub further: f64,
    pub ours: bool,
}

/// Horizontal bars over a logarithmic axis.
pub fn bars(title: &str, unit: &str, bars: &[Bar]) -> String {
    let height = 24.0 * bars.len() as f64 + 40.0;
    let left = room_for(bars.iter().map(|bar| bar.name.as_str())) + 16.0;
    let values = bars.iter().flat_map(|bar| [bar.value, bar.further]);
    let Some(x) = Axis::new(values.chain([1.0]), left, left + BARS - 90.0) else { return String::new() };
    let mut svg = open(title, left + BARS, height);
    for tick in x.ticks() {
        let at = x.at(tick);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"0\" y2=\"{:.1}\"/>",
            height - 26.0
        );
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{} {unit}</text>",
            height - 10.0,
            short(tick)
        );
    }
    for (number, bar) in bars.iter().enumerate() {
        let y = 24.0 * number as f64 + 4.0;
        let colour = if bar.ours { 0 } else { 7 };
        let (value, further) = (x.at(bar.value.max(1e-9)), x.at(bar.further.max(bar.value).max(1e-9)));
        let _ = write!(
            svg,
            "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 8.0,
            y + 12.0,
            escape(&bar.name)
        );
        let _ = write!(
            svg,
            "<rect class=\"bar pale c{colour}\" x=\"{left}\" y=\"{y}\" width=\"{:.1}\" height=\"15\"/>",
            (further - left).max(1.0)
        );
        let _ = write!(
            svg,
            "<rect class=\"bar c{colour}\" x=\"{left}\" y=\"{y}\" width=\"{:.1}\" height=\"15\"/>",
            (value - left).max(1.0)
        );
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">{} / {}</text>",
            further + 6.0,
            y + 12.0,
            short(bar.value),
            short(bar.further)
        );
    }
    svg.push_str("</svg></figure>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_its_lines_and_only_numbers() {
        let line =
            Line { name: "a <b>".into(), points: vec![(0.0, 1.0), (8.0, 2.0), (1024.0, 40.0)], ours: true };
        let svg = lines("t", "µs", &[line]);
        assert!(svg.contains("a &lt;b&gt;") && svg.matches("<circle").count() == 2);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert_eq!(lines("t", "µs", &[]), "");
        let bar = Bar { name: "x".into(), value: 3.0, further: 0.0, ours: false };
        assert!(!bars("t", "µs", &[bar]).contains("NaN"));
    }
}
