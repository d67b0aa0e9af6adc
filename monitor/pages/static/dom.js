// Elements made of data; text is always set as text, so that nothing in data can become markup.

const SVG = "http://www.w3.org/2000/svg";

// el("a.quiet", { href: "run", onclick: f }, "text", child): a tag with classes, attributes, children.
export function el(what, given, ...children) {
  const [tag, ...classes] = what.split(".");
  return filled(document.createElement(tag), classes, given, children);
}

export function svg(what, given, ...children) {
  const [tag, ...classes] = what.split(".");
  return filled(document.createElementNS(SVG, tag), classes, given, children);
}

function filled(node, classes, given, children) {
  if (classes.length) node.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(given || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, of] of Object.entries(value)) node.style.setProperty(key, of);
    else if (name === "data") Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false).map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

// Sets a text only if it has changed, so that a selection and a screen reader are left alone.
export function setText(node, text) {
  const told = String(text);
  if (node && node.textContent !== told) node.textContent = told;
}

export function setHidden(node, hidden) {
  if (node && node.hidden !== hidden) node.hidden = hidden;
}

export function replace(node, ...children) {
  node.replaceChildren(...children.flat().filter(Boolean));
}

export function find(root, name) {
  return root.querySelector(`[data-id="${name}"]`);
}

// What is said to a person who has to type something.
export function empty(title, hint, command) {
  return el("div.empty", {}, el("p.empty-title", {}, title), hint ? el("p", {}, hint) : null, command ? commandLine(command) : null);
}

// A command with a button that copies it.
export function commandLine(text) {
  const button = el("button.quiet.copy", { type: "button", "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(button.previousSibling);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Press Ctrl-C";
    }
    setTimeout(() => setText(button, "Copy"), 2000);
  });
  return el("div.command", {}, el("code", {}, text), button);
}
