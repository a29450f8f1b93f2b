// Support as of the day the page is read: it may be older than its reader thinks.

const today = () => new Date().toISOString().slice(0, 10);
const stateOn = (day, { ga, eop }) => (day < ga ? "planned" : day <= eop ? "supported" : "ended");

function showSupport(day) {
  for (const one of document.querySelectorAll(".support[data-ga]")) {
    const state = stateOn(day, one.dataset);
    one.textContent = state;
    one.className = `badge support ${state}`;
  }
  document.getElementById("supported").textContent = document.querySelectorAll("#rows-table .support.supported").length;
  const timeline = document.getElementById("timeline");
  if (!timeline) return;
  const [first, last, now] = [timeline.dataset.first, timeline.dataset.last, day].map((text) => Date.parse(text));
  const left = Math.min(100, Math.max(0, (100 * (now - first)) / (last - first)));
  for (const line of timeline.querySelectorAll(".today")) line.style.left = `${left}%`;
  for (const one of timeline.querySelectorAll(".window")) one.classList.toggle("ended", stateOn(day, one.dataset) === "ended");
}
