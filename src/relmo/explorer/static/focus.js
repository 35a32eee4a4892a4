// Focus across renders. Views replace whole parts of the page; the focused element is found again in the new part by its
// tag and name, else by its position. A part with a slider that is being dragged is rendered when the slider is released.

const FOCUSABLE = "a, button, input, select, textarea, summary, [tabindex]";
let lost = null; // the focused element that a render has removed, until its equivalent is there
let dragged = null; // the slider that the pointer holds
const delayed = new Map(); // children by container: renders that would remove that slider

document.addEventListener("pointerdown", ({ target }) => {
  lost = null;
  dragged = target.matches("input[type=range]") ? target : null;
}, true);
for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => setTimeout(release), true);

function release() {
  dragged = null;
  const renders = [...delayed];
  delayed.clear();
  for (const [container, children] of renders) render(container, children);
}

export function render(container, children) {
  if (dragged && container.contains(dragged)) return void delayed.set(container, children);
  const active = document.activeElement;
  if (active !== container && container.contains(active)) lost = locate(active);
  container.replaceChildren(...children);
  if (lost) refocus();
}

function locate(element) {
  const region = element.closest("#screen, #top");
  if (!region) return null;
  const [tag, name, path] = [element.tagName, accessibleName(element), []];
  for (let node = element; node !== region; node = node.parentElement) path.unshift([...node.parentElement.children].indexOf(node));
  return { region, screen: region.dataset.screen, tag, name, path, index: namesakes(region, tag, name).indexOf(element), isOpen: element.closest("details")?.open };
}

function accessibleName(element) {
  const label = element.labels?.[0];
  return element.getAttribute("aria-label") ?? (label?.querySelector("span") ?? label ?? element).textContent;
}

function namesakes(region, tag, name) {
  return [...region.querySelectorAll(tag)].filter((element) => accessibleName(element) === name);
}

function refocus() {
  const main = document.getElementById("screen");
  const { region, screen, tag, name, path, index, isOpen } = lost;
  const hasMoved = ![document.body, main].includes(document.activeElement);
  if (hasMoved || region.dataset.screen !== screen) return void (lost = null);
  const there = path.reduce((node, i) => node?.children[i], region);
  const target = namesakes(region, tag, name)[index] ?? (there?.tagName === tag ? there : null);
  if (isOpen && target?.closest("details")) target.closest("details").open = true;
  ((target && enabled(target)) ?? main).focus({ preventScroll: true });
  if (target) lost = null;
}

// The element, or the nearest beside it if it is disabled.
function enabled(element) {
  if (!element.disabled) return element;
  const siblings = [...element.parentElement.children];
  const distance = (other) => Math.abs(siblings.indexOf(other) - siblings.indexOf(element));
  return siblings.filter((other) => other.matches(FOCUSABLE) && !other.disabled).sort((a, b) => distance(a) - distance(b))[0];
}
