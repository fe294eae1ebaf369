"use strict";
// panning and zooming: one transform on the whole drawing, which the browser moves without painting it again
var circuitViewport = (function () {
  const [LEAST, MOST] = [0.05, 4];
  const SETTLED = 160; // ms without a move, after which everything is painted again
  const FAR = 0.3; // below it only titles can be read

  function attach(stage, canvas, onClick) {
    const view = { x: 0, y: 0, scale: 1 };
    let pending = false;
    let settling = 0;

    function apply() {
      if (pending) return;
      pending = true;
      requestAnimationFrame(function () {
        pending = false;
        canvas.classList.add("moving");
        canvas.classList.toggle("far", view.scale < FAR);
        canvas.style.transform = "translate3d(" + view.x + "px," + view.y + "px,0) scale(" + view.scale + ")";
        clearTimeout(settling);
        settling = setTimeout(() => canvas.classList.remove("moving"), SETTLED);
      });
    }

    function zoomAt(factor, x, y) {
      const scale = Math.min(MOST, Math.max(LEAST, view.scale * factor));
      view.x = x - ((x - view.x) * scale) / view.scale;
      view.y = y - ((y - view.y) * scale) / view.scale;
      view.scale = scale;
      apply();
    }

    // the whole drawing, or its width and its top where the whole would be too small to read
    function fit(scene, isWhole) {
      const [w, h] = [stage.clientWidth, stage.clientHeight];
      const whole = Math.min(w / scene.width, (h - 40) / scene.height, 1.2);
      const readable = Math.max(whole, Math.min(w / scene.width, 0.62));
      view.scale = Math.max(LEAST, isWhole ? whole : readable);
      view.x = (w - scene.width * view.scale) / 2;
      view.y = Math.max(0, (h - 40 - scene.height * view.scale) / 2);
      apply();
    }

    function center(box) {
      const [w, h] = [stage.clientWidth, stage.clientHeight];
      view.scale = Math.max(view.scale, 0.7);
      view.x = w / 2 - (box.x + box.width / 2) * view.scale;
      view.y = h / 2 - (box.y + Math.min(box.height, h / view.scale) / 2) * view.scale;
      apply();
    }

    // bring a box into sight, moving no more than it takes
    function reveal(box) {
      const margin = 40;
      const [left, top] = [view.x + box.x * view.scale, view.y + box.y * view.scale];
      const [right, bottom] = [left + box.width * view.scale, top + box.height * view.scale];
      if (left < margin) view.x += margin - left;
      else if (right > stage.clientWidth - margin) view.x -= right - stage.clientWidth + margin;
      if (top < margin) view.y += margin - top;
      else if (bottom > stage.clientHeight - margin) view.y -= bottom - stage.clientHeight + margin;
      apply();
    }

    function pan(dx, dy) {
      view.x += dx;
      view.y += dy;
      apply();
    }

    stage.addEventListener(
      "wheel",
      function (event) {
        event.preventDefault();
        const rect = stage.getBoundingClientRect();
        const unit = event.deltaMode === 1 ? 16 : 1;
        if (event.shiftKey) pan(-event.deltaY * unit, 0);
        else zoomAt(Math.exp(-event.deltaY * unit * 0.0016), event.clientX - rect.left, event.clientY - rect.top);
      },
      { passive: false },
    );

    let drag = null;
    stage.addEventListener("pointerdown", function (event) {
      if (event.button !== 0) return;
      drag = { x: event.clientX, y: event.clientY, moved: false, target: event.target };
    });
    window.addEventListener("pointermove", function (event) {
      if (!drag) return;
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      if (!drag.moved && Math.hypot(dx, dy) < 4) return;
      drag.moved = true;
      stage.classList.add("dragging");
      pan(dx, dy);
      drag.x = event.clientX;
      drag.y = event.clientY;
    });
    window.addEventListener("pointerup", function (event) {
      const ended = drag;
      drag = null;
      stage.classList.remove("dragging");
      if (ended && !ended.moved && event.target === ended.target) onClick(ended.target);
    });
    return { view, apply, zoomAt, fit, center, reveal, pan };
  }

  return { attach };
})();
