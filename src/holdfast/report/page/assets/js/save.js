// Figures as files: every figure has an SVG text, from which the PNG is drawn.

const PIXELS_PER_UNIT = 2;

function download(name, blob) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function asSvgBlob(text) {
  return new Blob([text], { type: "image/svg+xml;charset=utf-8" });
}

function asPngBlob(text) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => {
      const canvas = element("canvas", { width: image.width * PIXELS_PER_UNIT, height: image.height * PIXELS_PER_UNIT });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the picture is too large"))));
    };
    image.onerror = () => reject(new Error("the figure cannot be drawn as a picture"));
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  });
}

/** Buttons that save a figure; `svgText` returns its current SVG text. */
function saveControl(title, svgText) {
  const name = fileName(title);
  const button = (kind, make) => element("button", {
    type: "button", "aria-label": `Save ${title} as ${kind}`,
    onclick: async () => download(`${name}.${kind.toLowerCase()}`, await make(svgText())),
  }, kind);
  return element("span", { class: "save" }, "Save", button("SVG", asSvgBlob), button("PNG", asPngBlob));
}

/** One of our drawings as a complete SVG text, with a background and a size. */
function drawingText(drawing) {
  const copy = drawing.cloneNode(true);
  const [x, y, width, height] = drawing.getAttribute("viewBox").split(" ").map(Number);
  copy.setAttribute("xmlns", SVG_SPACE);
  copy.setAttribute("width", 640);
  copy.setAttribute("height", Math.round((640 * height) / width));
  copy.setAttribute("font-family", "system-ui, sans-serif");
  copy.prepend(shape("rect", { x, y, width, height, fill: ink("surface") }));
  return new XMLSerializer().serializeToString(copy);
}
