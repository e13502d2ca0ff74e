// The least contrast of anything that can be seen, by the rules of WCAG, whose it is, and how
// many texts there are.
const parts = color => color.match(/[\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map(part => {
    part /= 255;
    return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
}).reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
const behind = element => {
    for (; element; element = element.parentElement) {
        const color = parts(getComputedStyle(element).backgroundColor);
        if ((color[3] ?? 1) === 1) return color;
    }
    return [255, 255, 255];
};
const ratio = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
};
let [least, whose, seen] = [21, '', 0];
const look = (element, ink, ground, factor) => {
    const contrast = ratio(parts(ink), behind(ground)) * factor;
    if (contrast < least) [least, whose] = [contrast, element.outerHTML];
};
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (element.closest('script, style, option, title, .unseen')) continue;
    seen += 1;
    const style = getComputedStyle(element);
    look(element, element.closest('svg') ? style.fill : style.color, element, 1);
}
// What is drawn needs less.
const drawn = [['.chart .line', 'stroke'], ['.status', 'color'], ['input', 'borderTopColor'], ['.share i', 'backgroundColor']];
for (const [selector, property] of drawn) {
    for (const element of document.querySelectorAll(selector)) {
        if (element.checkVisibility()) look(element, getComputedStyle(element)[property], element.parentElement, 1.5);
    }
}
return [least, whose, seen];
