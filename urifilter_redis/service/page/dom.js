// The document: text from the service or the user is set as text, never as markup.

export const part = (id) => document.getElementById(id);

/** Make an element with attributes and children. */
export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Set a text, if it has changed: so a selection stays, and screen readers do not read it out again. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Give `parent` so many children; the remaining ones keep their state. */
export function resize(parent, count, makeOne) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(makeOne());
}

/** Show pairs of a term and a text in a list. */
export function writeList(list, pairs) {
  resize(list, pairs.length, () => make("div", {}, make("dt"), make("dd"), make("dd")));
  pairs.forEach(([term, text, more = ""], place) => {
    const [first, second, third] = list.children[place].children;
    write(first, term);
    write(second, text);
    write(third, more);
  });
}

/** Show problems, each with its level as its class. */
export function writeProblems(list, problems) {
  resize(list, problems.length, () => make("li", {}, make("b"), " ", make("span")));
  problems.forEach(({ title, level, text }, place) => {
    const item = list.children[place];
    item.className = level;
    write(item.firstElementChild, title);
    write(item.lastElementChild, text);
  });
  list.hidden = problems.length === 0;
}

/** Copy a text; return whether it was copied. Browsers refuse the clipboard to pages without TLS, but not this way. */
async function copy(node) {
  try {
    await navigator.clipboard.writeText(node.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(node);
    return document.execCommand("copy");
  }
}

document.addEventListener("click", async ({ target }) => {
  if (!target.classList.contains("copy")) return;
  const copied = await copy(target.previousElementSibling);
  write(target, copied ? "Copied" : "Selected");
  setTimeout(() => write(target, "Copy"), 2000);
});
