//! The picture of the architecture: a description of boxes and arrows, and the SVG made of it.
//!
//! The description has one thing on each line; a unit is ten pixels:
//!
//! ```text
//! # a comment
//! frame X Y WIDTH HEIGHT: title
//! box NAME X Y WIDTH HEIGHT: title | line | line
//! arrow FROM -> TO: label
//! ```
//!
//! A word in backticks is a crate. Arrows are straight, and several between the same boxes are
//! spread over the edge.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result, bail, ensure};

/// The description, from the root of the checkout.
pub(crate) const SOURCE: &str = "docs/architecture.picture";
/// The picture that is made of it.
pub(crate) const PICTURE: &str = "docs/architecture.svg";

/// Pixels of a unit.
const UNIT: f64 = 10.0;
/// Units of space around all shapes.
const MARGIN: f64 = 2.0;
/// Units between the baselines of two lines of text.
const LINE: f64 = 1.7;

/// Makes the SVG anew.
pub(crate) fn main() -> Result<()> {
    let root = crate::root();
    let text = fs::read_to_string(root.join(SOURCE)).context(SOURCE)?;
    fs::write(root.join(PICTURE), render(&text)?).context(PICTURE)
}

/// The SVG of a description.
pub(crate) fn render(description: &str) -> Result<String> {
    Ok(Picture::parse(description)?.to_svg())
}

/// The crates that a description names.
pub(crate) fn crates(description: &str) -> impl Iterator<Item = &str> {
    let lines = description.lines().filter(|line| !line.starts_with('#'));
    lines.flat_map(|line| line.split('`').skip(1).step_by(2))
}

#[derive(Default)]
struct Picture<'a> {
    frames: Vec<TextRect<'a>>,
    boxes: Vec<(&'a str, TextRect<'a>)>,
    arrows: Vec<Arrow<'a>>,
}

/// A rectangle with text.
struct TextRect<'a> {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
    lines: Vec<&'a str>,
}

/// An arrow between two boxes, by their places in the list.
struct Arrow<'a> {
    from: usize,
    to: usize,
    label: &'a str,
}

impl<'a> Picture<'a> {
    fn parse(description: &'a str) -> Result<Self> {
        let mut picture = Self::default();
        for line in description.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            picture.add(line).with_context(|| format!("in {line:?}"))?;
        }
        Ok(picture)
    }

    fn add(&mut self, line: &'a str) -> Result<()> {
        let (head, text) = line.split_once(':').context("no colon")?;
        let (kind, head) = head.split_once(' ').context("no place")?;
        match kind {
            "frame" => self.frames.push(TextRect::parse(head, text)?),
            "box" => {
                let (name, place) = head.split_once(' ').context("no place")?;
                self.boxes.push((name, TextRect::parse(place, text)?));
            }
            "arrow" => {
                let (from, to) = head.split_once(" -> ").context("no ` -> `")?;
                let (from, to) = (self.find(from)?, self.find(to)?);
                self.arrows.push(Arrow { from, to, label: text.trim() });
            }
            _ => bail!("neither frame nor box nor arrow"),
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<usize> {
        let found = self.boxes.iter().position(|(other, _)| *other == name);
        found.with_context(|| format!("no box {name} before"))
    }

    fn to_svg(&self) -> String {
        let shapes = || self.frames.iter().chain(self.boxes.iter().map(|(_, shape)| shape));
        let right = shapes().map(|shape| shape.x + shape.width).fold(0.0, f64::max);
        let bottom = shapes().map(|shape| shape.y + shape.height).fold(0.0, f64::max);
        let (width, height) = ((right + MARGIN) * UNIT, (bottom + MARGIN) * UNIT);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\" \
             fill=\"#1b1f24\">\n\
             <!-- Made of {SOURCE} by `cargo xtask picture`: do not edit. -->\n\
             <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#ffffff\"/>\n"
        );
        for frame in &self.frames {
            frame.draw(&mut svg, "#f2f4f7", "#9aa4b2", Align::Top);
        }
        for (_, shape) in &self.boxes {
            shape.draw(&mut svg, "#dbe9ff", "#2f5fa8", Align::Middle);
        }
        for (index, arrow) in self.arrows.iter().enumerate() {
            self.draw(index, arrow, &mut svg);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn draw(&self, index: usize, arrow: &Arrow<'_>, svg: &mut String) {
        let ends = |arrow: &Arrow<'_>| (arrow.from.min(arrow.to), arrow.from.max(arrow.to));
        let is_beside = |other: &&Arrow<'_>| ends(other) == ends(arrow);
        let count = self.arrows.iter().filter(is_beside).count();
        let rank = self.arrows[..index].iter().filter(is_beside).count();
        let part = (rank + 1) as f64 / (count + 1) as f64;
        let (from, to) = (&self.boxes[arrow.from].1, &self.boxes[arrow.to].1);
        let [x1, y1, x2, y2] = from.way_to(to, part).map(|unit| unit * UNIT);
        let is_level = y1 == y2;
        let (dx, dy) = ((x2 - x1).signum() * 8.0, (y2 - y1).signum() * 8.0);
        let head = if is_level {
            format!("{x2},{y2} {0},{1} {0},{2}", x2 - dx, y2 - 4.0, y2 + 4.0)
        } else {
            format!("{x2},{y2} {1},{0} {2},{0}", y2 - dy, x2 - 4.0, x2 + 4.0)
        };
        let (x, y, anchor) = if is_level {
            ((x1 + x2) / 2.0, y1 - 6.0, "middle")
        } else {
            (x1 + 8.0, (y1 + y2) / 2.0 + 4.0, "start")
        };
        let label = escape(arrow.label);
        let (x2, y2) = if is_level { (x2 - dx, y2) } else { (x2, y2 - dy) };
        let _ = writeln!(
            svg,
            "<path d=\"M{x1} {y1} L{x2} {y2}\" stroke=\"#1b1f24\" stroke-width=\"1.5\"/>\n\
             <polygon points=\"{head}\"/>\n\
             <text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" font-size=\"12\">{label}</text>"
        );
    }
}

/// Where the text of a shape is.
#[derive(Clone, Copy, PartialEq)]
enum Align {
    Top,
    Middle,
}

impl<'a> TextRect<'a> {
    fn parse(place: &str, text: &'a str) -> Result<Self> {
        let numbers: Vec<f64> = place.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        ensure!(numbers.len() == 4, "not four numbers: x, y, width, height");
        let lines = text.split('|').map(str::trim).collect();
        let [x, y, width, height] = [0, 1, 2, 3].map(|index| numbers[index]);
        Ok(Self { x, y, width, height, lines })
    }

    fn draw(&self, svg: &mut String, fill: &str, stroke: &str, align: Align) {
        let [x, y, width, height] =
            [self.x, self.y, self.width, self.height].map(|unit| unit * UNIT);
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\" \
             fill=\"{fill}\" stroke=\"{stroke}\"/>"
        );
        let above = match align {
            Align::Top => 1.4,
            Align::Middle => (self.height - LINE * self.lines.len() as f64) / 2.0 + 1.25,
        };
        for (index, line) in self.lines.iter().enumerate() {
            let y = (self.y + above + LINE * index as f64) * UNIT;
            let (x, weight) = (x + width / 2.0, if index == 0 { "bold" } else { "normal" });
            let font = if line.starts_with('`') { "monospace" } else { "sans-serif" };
            let text = escape(&line.replace('`', ""));
            let _ = writeln!(
                svg,
                "<text x=\"{x}\" y=\"{y:.0}\" text-anchor=\"middle\" font-family=\"{font}\" \
                 font-weight=\"{weight}\">{text}</text>"
            );
        }
    }

    /// The ends of an arrow to another shape, at this part of the edges' overlap: level if they lie
    /// side by side.
    fn way_to(&self, other: &Self, part: f64) -> [f64; 4] {
        let overlap = |at: f64, length: f64, other_at: f64, other_length: f64| {
            let (start, end) = (at.max(other_at), (at + length).min(other_at + other_length));
            (end > start).then_some(start + (end - start) * part)
        };
        let level = overlap(self.y, self.height, other.y, other.height);
        let upright = overlap(self.x, self.width, other.x, other.width).unwrap_or(self.x);
        match level {
            Some(y) if self.x < other.x => [self.x + self.width, y, other.x, y],
            Some(y) => [self.x, y, other.x + other.width, y],
            None if self.y < other.y => [upright, self.y + self.height, upright, other.y],
            None => [upright, self.y, upright, other.y + other.height],
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESCRIPTION: &str = "# a `comment`\nframe 0 0 40 10: all\nbox a 1 2 10 6: `aa` | first\n\
        box b 21 2 10 6: b < c\narrow a -> b: there\narrow b -> a: back\n";

    #[test]
    fn boxes_and_arrows_are_drawn() {
        let svg = render(DESCRIPTION).unwrap();
        for part in ["viewBox=\"0 0 420 120\"", ">aa<", ">first<", ">b &lt; c<", ">there<"] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
        assert!(svg.contains("M110 40 L202 40"), "the upper arrow leads to the right: {svg}");
        assert!(svg.contains("M210 60 L118 60"), "the lower arrow leads to the left: {svg}");
    }

    #[test]
    fn crates_are_in_backticks() {
        assert_eq!(crates(DESCRIPTION).collect::<Vec<_>>(), ["aa"]);
    }

    #[test]
    fn undrawable_pictures_are_reported() {
        for line in ["box a: b", "box a 1 2 3: b", "arrow a -> b: c", "circle 1: a", "box"] {
            assert!(render(line).is_err(), "{line}");
        }
    }
}
