// Building the page's elements. Whatever a model or a caller wrote only ever becomes a text node.

export const byId = (id) => document.getElementById(id);

export function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

export function makeButton(className, text, onClick) {
  const button = make("button", className, text);
  button.type = "button";
  button.addEventListener("click", onClick);
  return button;
}

export function makeSvg(tag, attributes = {}) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Text that has not changed stays as it is, and what a reader has selected in it too.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A pane that was scrolled to its end stays there while it grows.
export function follow(pane, change) {
  const isAtEnd = pane.scrollHeight - pane.scrollTop - pane.clientHeight < 24;
  change();
  if (isAtEnd) pane.scrollTop = pane.scrollHeight;
}
