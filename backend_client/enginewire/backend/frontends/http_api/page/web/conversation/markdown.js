// Markdown as models write it: paragraphs, headings, lists, bold, italic, code. Everything else, HTML and
// links too, is shown as it was written. Builds elements and text nodes only.

import { make } from "../dom.js";

const HEADING = /^(#{1,6})[ \t]+(.*)$/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])[ \t]+(.*)$/;
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const ESCAPED = /[\\`*_#\-+.()[\]{}!~>|]/;
const MAX_DEPTH = 6;

// The text as a list of { kind, lines, … }. Most of them stay the same as the text grows.
export function blocksOf(text) {
  const blocks = [];
  const last = (kind) => (blocks.length && blocks.at(-1).kind === kind ? blocks.at(-1) : null);
  let fence = null;
  for (const line of text.split(/\r?\n/)) {
    if (fence) {
      if (closes(line, fence.mark)) fence = null;
      else fence.lines.push(line);
      continue;
    }
    const opened = FENCE.exec(line), heading = HEADING.exec(line), item = ITEM.exec(line);
    if (opened) {
      fence = { kind: "code", mark: opened[1], language: opened[2].trim(), lines: [] };
      blocks.push(fence);
    } else if (heading) {
      const title = heading[2].replace(/[ \t]#+$/, "").trim();
      blocks.push({ kind: "heading", level: heading[1].length, lines: [title] });
    } else if (item) {
      const list = last("list") || { kind: "list", lines: [] };
      if (list !== blocks.at(-1)) blocks.push(list);
      list.lines.push(line);
    } else if (!line.trim()) {
      if (last("list")) last("list").lines.push("");
      else blocks.push({ kind: "gap", lines: [] });
    } else if (last("list") && (/^[ \t]/.test(line) || last("list").lines.at(-1) !== "")) {
      last("list").lines.push(line);
    } else if (last("paragraph")) {
      last("paragraph").lines.push(line);
    } else {
      blocks.push({ kind: "paragraph", lines: [line] });
    }
  }
  return blocks.filter((block) => block.kind !== "gap");
}

function closes(line, mark) {
  const bare = line.trim();
  return bare.length >= mark.length && bare.replaceAll(mark[0], "") === "";
}

export function elementOf(block) {
  if (block.kind === "code") {
    const pre = make("pre"), code = make("code", "", block.lines.join("\n"));
    pre.tabIndex = 0;
    if (block.language) pre.dataset.language = block.language;
    pre.append(code);
    return pre;
  }
  if (block.kind === "list") return listOf(block.lines);
  // The page has headings of its own: those of an answer come below them.
  const element = make(block.kind === "heading" ? "h" + Math.min(6, block.level + 2) : "p");
  element.append(...inline(block.lines.join("\n")));
  return element;
}

function listOf(lines) {
  const root = { indent: -1, list: null, item: make("div") };
  const levels = [root];
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (!found) {
      if (line.trim()) levels.at(-1).text.push(line.trim());
      continue;
    }
    const indent = found[1].replaceAll("\t", "    ").length;
    while (levels.length > 1 && levels.at(-1).indent > indent) levels.pop();
    const tag = /\d/.test(found[2]) ? "OL" : "UL";
    if (levels.at(-1).indent < indent && levels.length <= MAX_DEPTH) {
      levels.push({ indent, list: newList(levels.at(-1).item, tag, found[2]) });
    } else if (levels.at(-1).list.tagName !== tag) {
      levels.at(-1).list = newList(levels.at(-2).item, tag, found[2]);
    }
    const level = levels.at(-1);
    level.item = make("li");
    level.text = [found[3]];
    level.list.append(level.item);
    items.set(level.item, level.text);
  }
  for (const item of root.item.querySelectorAll("li")) item.prepend(...inline(items.get(item).join("\n")));
  const only = root.item.children.length === 1;
  return only ? root.item.firstChild : root.item;
}

const items = new WeakMap();

function newList(parent, tag, mark) {
  const list = make(tag);
  if (tag === "OL" && parseInt(mark, 10) !== 1) list.start = parseInt(mark, 10);
  parent.append(list);
  return list;
}

// Nodes of a text without blocks. A mark that is never closed is itself.
export function inline(text, depth = 0) {
  const nodes = [], missing = new Set();
  let plain = "", at = 0;
  const flush = () => { if (plain) nodes.push(document.createTextNode(plain)); plain = ""; };
  while (at < text.length) {
    const span = spanAt(text, at, missing);
    if (!span) { plain += text[at++]; continue; }
    if (span.literal) { plain += span.literal; at = span.end; continue; }
    flush();
    const element = make(span.tag);
    if (span.tag === "code" || depth >= MAX_DEPTH) element.textContent = span.inner;
    else element.append(...inline(span.inner, depth + 1));
    nodes.push(element);
    at = span.end;
  }
  flush();
  return nodes;
}

function spanAt(text, at, missing) {
  const first = text[at];
  if (first === "\\" && ESCAPED.test(text[at + 1] || "")) return { literal: text[at + 1], end: at + 2 };
  if (first !== "`" && first !== "*" && first !== "_") return null;
  let mark = first;
  while (text[at + mark.length] === first) mark += first;
  if (first !== "`" && mark.length > 2) mark = mark.slice(0, 2);
  const begin = at + mark.length;
  const closing = first === "`" ? closingTicks : closingStars;
  const end = closing(text, begin, mark, missing);
  if (end < 0) return { literal: mark, end: begin };
  const inner = text.slice(begin, end), after = end + mark.length;
  if (first === "`") return { tag: "code", inner: inner.replace(/^ (.*\S.*) $/s, "$1"), end: after };
  return { tag: mark.length === 2 ? "strong" : "em", inner, end: after };
}

// What was not found once is not looked for again: the marks of a long answer take one pass, not one each.
function closingTicks(text, begin, mark, missing) {
  if (missing.has(mark)) return -1;
  for (let end = text.indexOf(mark, begin); end >= 0; end = text.indexOf(mark, end)) {
    let after = end + mark.length;
    while (text[after] === "`") after += 1;
    if (after === end + mark.length) return end;
    end = after;
  }
  missing.add(mark);
  return -1;
}

const isWord = (character) => character !== undefined && /[\p{L}\p{N}]/u.test(character);
const isSpace = (character) => character === undefined || /\s/.test(character);

function closingStars(text, begin, mark, missing) {
  if (missing.has(mark) || isSpace(text[begin])) return -1;
  if (mark[0] === "_" && isWord(text[begin - mark.length - 1])) return -1;
  for (let end = text.indexOf(mark, begin + 1); end >= 0; end = text.indexOf(mark, end)) {
    let after = end + mark.length;
    while (text[after] === mark[0]) after += 1;
    const fits = mark.length === 2 || after === end + 1;
    const closesWord = mark[0] !== "_" || !isWord(text[after]);
    // Of three marks the last ones close what was opened first.
    if (fits && closesWord && !isSpace(text[end - 1])) return mark.length === 2 ? after - 2 : end;
    end = after;
  }
  missing.add(mark);
  return -1;
}
