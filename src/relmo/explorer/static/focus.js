// Focus across renders. Views replace whole parts of the page; the focused element is found again in the new part by its
// tag and name, else by its position. A part with a slider that is being dragged is rendered when the slider is released.

const FOCUSABLE = "a, button, input, select, textarea, summary, [tabindex]";
let lostFocus = null; // focused element that a render has removed, until its equivalent is rendered
let draggedSlider = null; // slider that is being dragged
const delayedRenders = new Map(); // children by container: renders that would remove that slider

document.addEventListener("pointerdown", ({ target }) => {
  lostFocus = null;
  draggedSlider = target.matches("input[type=range]") ? target : null;
}, true);
for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => setTimeout(release), true);

function release() {
  draggedSlider = null;
  const renders = [...delayedRenders];
  delayedRenders.clear();
  for (const [container, children] of renders) render(container, children);
}

export function render(container, children) {
  if (draggedSlider && container.contains(draggedSlider)) return void delayedRenders.set(container, children);
  const active = document.activeElement;
  if (active !== container && container.contains(active)) lostFocus = locate(active);
  container.replaceChildren(...children);
  if (lostFocus) refocus();
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
  const { region, screen, tag, name, path, index, isOpen } = lostFocus;
  const hasMoved = ![document.body, main].includes(document.activeElement);
  if (hasMoved || region.dataset.screen !== screen) return void (lostFocus = null);
  const elementAtPath = path.reduce((node, i) => node?.children[i], region);
  const target = namesakes(region, tag, name)[index] ?? (elementAtPath?.tagName === tag ? elementAtPath : null);
  if (isOpen && target?.closest("details")) target.closest("details").open = true;
  ((target && nearestEnabled(target)) ?? main).focus({ preventScroll: true });
  if (target) lostFocus = null;
}

// Return the element, or its nearest enabled sibling.
function nearestEnabled(element) {
  if (!element.disabled) return element;
  const siblings = [...element.parentElement.children];
  const distance = (sibling) => Math.abs(siblings.indexOf(sibling) - siblings.indexOf(element));
  return siblings.filter((sibling) => sibling.matches(FOCUSABLE) && !sibling.disabled).sort((a, b) => distance(a) - distance(b))[0];
}
