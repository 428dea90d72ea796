"""Plausible wrong registries and quantiles, each with the check that must catch it."""

MUTANTS = r"""
metrics-exporter counters_only_grow: without the suffix
-            shown = name + "_total" if kind == "counter" else name
+            shown = name
metrics-exporter counters_only_grow: may fall
-        if amount < 0 and name in self.metrics and self.metrics[name]["kind"] == "counter":
+        if amount < -1e9:
metrics-exporter gauges_go_both_ways: infinity as Python writes it
-    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
+    return repr(value)
metrics-exporter gauges_go_both_ways: six decimals
-        return repr(float(value))
+        return f"{value:.6f}"
metrics-exporter gauges_go_both_ways: add replaces
-        self._series(name, ("counter", "gauge"), values)["sum"] += amount
+        self._series(name, ("counter", "gauge"), values)["sum"] = amount
metrics-exporter buckets_are_cumulative: each bucket for itself
-                    count += more
+                    count = more
metrics-exporter buckets_are_cumulative: a value on a bound belongs to the next bucket
-        place = next((at for at, bound in enumerate(bounds) if value <= bound), len(bounds))
+        place = next((at for at, bound in enumerate(bounds) if value < bound), len(bounds))
metrics-exporter buckets_are_cumulative: values beyond the last bound are lost
-        series["counts"][place] += 1
+        series["counts"][place] += place < len(bounds)
metrics-exporter buckets_are_cumulative: the sum is the number of values
-        series["sum"] += value
+        series["sum"] += 1
metrics-exporter buckets_are_cumulative: no bucket +Inf
-                for bound, more in zip([*metric["bounds"], math.inf], series["counts"], strict=True):
+                for bound, more in zip(metric["bounds"], series["counts"]):
metrics-exporter labels_make_series: the order of values does not matter
-        series: dict[str, Any] = metric["series"].setdefault(values, new)
+        series: dict[str, Any] = metric["series"].setdefault(tuple(sorted(values)), new)
metrics-exporter labels_make_series: touch resets
         self._series(name, KINDS, values)
+        del self.metrics[name]["series"][values]
+        self._series(name, KINDS, values)
metrics-exporter labels_make_series: a metric without labels appears with its first value
-        if not labels:
+        if name == "":
             self.touch(name)
metrics-exporter texts_are_escaped: the backslash comes last
-    return text.replace("\\", "\\\\").replace("\n", "\\n")
+    return text.replace("\n", "\\n").replace("\\", "\\\\")
metrics-exporter texts_are_escaped: no backslash
-    return text.replace("\\", "\\\\").replace("\n", "\\n")
+    return text.replace("\n", "\\n")
metrics-exporter texts_are_escaped: quotes end the value
-    quoted = [f'{label}="{escaped(given).replace(QUOTE, ESCAPED_QUOTE)}"' for label, given in labels]
+    quoted = [f'{label}="{escaped(given)}"' for label, given in labels]
metrics-exporter texts_are_escaped: HELP as it is
-            lines += [f"# HELP {shown} {escaped(metric['help'])}", f"# TYPE {shown} {kind}"]
+            lines += [f"# HELP {shown} {metric['help']}", f"# TYPE {shown} {kind}"]
metrics-exporter each_metric_stands_once: HELP and TYPE before each series
-            for values, series in metric["series"].items():
+            for at, (values, series) in enumerate(metric["series"].items()):
+                if at:
+                    lines += [f"# HELP {shown} {escaped(metric['help'])}", f"# TYPE {shown} {kind}"]
metrics-exporter each_metric_stands_once: series sorted by their values
-            for values, series in metric["series"].items():
+            for values, series in sorted(metric["series"].items(), key=lambda item: item[0]):
metrics-exporter wrong_declarations_are_refused: a line feed at the end passes
-        is_named = re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name) and name not in self.metrics
+        is_named = re.match(r"[a-zA-Z_:][a-zA-Z0-9_:]*$", name) and name not in self.metrics
metrics-exporter wrong_declarations_are_refused: a second declaration replaces the first
-        is_named = re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name) and name not in self.metrics
+        is_named = re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name)
metrics-exporter wrong_declarations_are_refused: a histogram may have a label le
-        if wrong or len(set(labels)) < len(labels) or (kind == "histogram" and "le" in labels):
+        if wrong or len(set(labels)) < len(labels):
metrics-exporter a_refused_call_changes_nothing: a series appears before the check
+        if metric is not None and len(values) == len(metric["labels"]):
+            self.metrics[name]["series"].setdefault(values, {"sum": 0.0, "counts": [0] * (len(metric["bounds"]) + 1)})
         if metric is None or metric["kind"] not in kinds or len(values) != len(metric["labels"]):
metrics-exporter a_refused_call_changes_nothing: any number of label values
-        if metric is None or metric["kind"] not in kinds or len(values) != len(metric["labels"]):
+        if metric is None or metric["kind"] not in kinds:
metrics-exporter a_quantile_is_interpolated: the upper bound
-    return low + (bounds[place] - low) * (rank - below) / (counts[place] - below)
+    return bounds[place]
metrics-exporter a_quantile_is_interpolated: by the cumulative counts
-    return low + (bounds[place] - low) * (rank - below) / (counts[place] - below)
+    return low + (bounds[place] - low) * rank / counts[place]
metrics-exporter a_quantile_is_interpolated: from 0 in each bucket
-    low, below = (bounds[place - 1], counts[place - 1]) if place else (0.0, 0.0)
+    low, below = (0.0, counts[place - 1]) if place else (0.0, 0.0)
metrics-exporter quantiles_at_the_edges: infinity beyond the last bound
     if place == len(bounds) - 1:
-        return bounds[-2]
+        return math.inf
metrics-exporter quantiles_at_the_edges: a negative first bucket begins at 0
-    if place == 0 and bounds[0] <= 0:
+    if place == 0 and bounds[0] == 0:
metrics-exporter quantiles_at_the_edges: without a bucket +Inf
-    if len(bounds) < 2 or bounds[-1] != math.inf or counts[-1] == 0:
+    if len(bounds) < 2 or counts[-1] == 0:
metrics-exporter replicas_are_added_first: the last replica wins
-        summed[bound] = summed.get(bound, 0.0) + count
+        summed[bound] = count
metrics-exporter replicas_are_added_first: counts that fall stay
-        counts.append(max(summed[bound], counts[-1] if counts else 0.0))
+        counts.append(summed[bound])
metrics-exporter replicas_are_added_first: in the order given
-    bounds = sorted(summed)
+    bounds = list(summed)
metrics-exporter the_engine_exports_by_it: buckets with their first label only
-                lines.append(sample(f"{name}_bucket", [*labels, ("le", number(bound))], count))
+                lines.append(sample(f"{name}_bucket", [*labels[:1], ("le", number(bound))], count))
metrics-exporter the_least_quantile_has_a_value: divides by an empty first bucket
-    place = next(at for at, count in enumerate(counts) if count > 0 and count >= rank)
+    place = next(at for at, count in enumerate(counts) if count >= rank)
metrics-exporter counts_may_be_fractions: less than one value is none
-    if len(bounds) < 2 or bounds[-1] != math.inf or counts[-1] == 0:
+    if len(bounds) < 2 or bounds[-1] != math.inf or counts[-1] < 1:
metrics-exporter counts_may_be_fractions: counts become integers
-        summed[bound] = summed.get(bound, 0.0) + count
+        summed[bound] = summed.get(bound, 0) + int(count)
metrics-exporter quantiles_at_the_edges: beyond 1 is the largest bound
-    if q < 0 or q > 1:
+    if q > 1:
+        q = 1.0
+    if q < 0:
metrics-exporter wrong_declarations_are_refused: any kind is kept
-        if not is_named or kind not in KINDS or (kind == "counter" and name.endswith("_total")):
+        if not is_named or (kind == "counter" and name.endswith("_total")):
metrics-exporter a_refused_call_changes_nothing: a counter is assigned
-        self._series(name, ("gauge",), values)["sum"] = value
+        self._series(name, ("gauge", "counter"), values)["sum"] = value
metrics-exporter a_refused_call_changes_nothing: a gauge observes
-        series = self._series(name, ("histogram",), values)
+        series = self._series(name, ("histogram", "gauge"), values)
metrics-exporter a_refused_call_changes_nothing: a histogram is added to
-        self._series(name, ("counter", "gauge"), values)["sum"] += amount
+        self._series(name, ("counter", "gauge", "histogram"), values)["sum"] += amount
metrics-exporter labels_make_series: HELP and TYPE only with a series
-            lines += [f"# HELP {shown} {escaped(metric['help'])}", f"# TYPE {shown} {kind}"]
+            if metric["series"]:
+                lines += [f"# HELP {shown} {escaped(metric['help'])}", f"# TYPE {shown} {kind}"]
metrics-exporter counters_only_grow: the last line has no newline
-        return "".join(line + "\n" for line in lines)
+        return "\n".join(lines)
metrics-exporter counters_only_grow: empty braces
-    return f"{name}{{{','.join(quoted)}}} {number(value)}" if labels else f"{name} {number(value)}"
+    return f"{name}{{{','.join(quoted)}}} {number(value)}"
metrics-exporter random_metrics: a sum beyond a million is cut
-        series["sum"] += value
+        series["sum"] = min(series["sum"] + value, 1e6)
metrics-exporter gauges_go_both_ways: an assignment adds
-        self._series(name, ("gauge",), values)["sum"] = value
+        self._series(name, ("gauge",), values)["sum"] += value
"""
