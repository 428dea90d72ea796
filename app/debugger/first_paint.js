// Streamlit loads the parts of a page one by one, and each pushes the others. The first page of a tab is transparent
// until its script is at rest and its height has stayed the same; at once where the page says what it waits for, and
// in any case after 10 s.

{
  const still = 15; // frames without a change
  const shown = () => document.documentElement.classList.add("prep-shown");
  const isLong = () => document.querySelector("[data-testid=stSpinner], [data-testid=stException]");
  const isDone = () => document.querySelector("[data-test-script-state=notRunning]") && !document.querySelector("[data-testid=stSkeleton]");
  let height = 0, frames = 0;
  const look = (now) => {
    const main = document.querySelector(".stMainBlockContainer");
    const present = main?.scrollHeight ?? 0;
    frames = isDone() && present === height ? frames + 1 : 0;
    height = present;
    if (frames > still || isLong() || now > 10000) shown();
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}
