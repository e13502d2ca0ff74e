//! Pages in Markdown: fenced blocks, sections and tables.

/// A fenced block, with the line of its fence, the paragraph and the file before it.
#[derive(Debug, Clone, Copy)]
pub struct Block<'p> {
    /// What stands behind the fence.
    pub kind: &'p str,
    pub text: &'p str,
    pub line: usize,
    pub lead: &'p str,
    pub file: &'p str,
}

pub fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let (mut lead, mut file) = ("", "");
    let mut rest = page;
    while let Some((line, after)) = rest.split_once('\n') {
        let number = page[..page.len() - rest.len()].matches('\n').count() + 1;
        rest = after;
        if let Some(kind) = line.strip_prefix("```") {
            let length = match after.starts_with("```\n") {
                true => 0,
                false => after.find("\n```\n").expect("every block ends") + 1,
            };
            let (text, end) = after.split_at(length);
            if kind.split(' ').next() == Some("toml") {
                file = text;
            }
            blocks.push(Block {
                kind,
                text,
                line: number,
                lead,
                file,
            });
            rest = end.split_once('\n').expect("the end of a block").1;
        } else if !line.is_empty() {
            lead = line;
        }
    }
    blocks
}

/// A page without its fenced blocks.
pub fn prose(page: &str) -> String {
    let mut prose = page.to_owned();
    for block in blocks(page) {
        prose = prose.replacen(&format!("{}\n{}```\n", block.kind, block.text), "\n", 1);
    }
    prose
}

/// What stands under a heading, up to the next one that is not below it.
pub fn section<'p>(page: &'p str, heading: &str) -> &'p str {
    let start = page.find(&format!("\n{heading}\n")).expect(heading);
    let text = &page[start + heading.len() + 2..];
    let depth = heading.find(' ').expect("a heading begins with its depth");
    let ends = (2..=depth).filter_map(|depth| text.find(&format!("\n{} ", "#".repeat(depth))));
    &text[..ends.min().unwrap_or(text.len())]
}

/// The rows of a table, by the beginning of its first line.
pub fn rows<'p>(text: &'p str, header: &str) -> Vec<Vec<&'p str>> {
    let table = &text[text.find(header).expect(header)..];
    let lines = table.lines().skip(2);
    let rows = lines.map_while(|line| line.strip_prefix("| ")?.strip_suffix('|'));
    rows.map(|row| row.split(" | ").map(str::trim).collect())
        .collect()
}

/// The pieces of code in a text.
pub fn code(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}
