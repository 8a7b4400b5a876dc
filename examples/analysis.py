"""Half a year of sales: a table by region and a chart by month."""

import sys

import matplotlib.pyplot as plt
import pandas as pd

sales = pd.read_csv(sys.argv[1] if len(sys.argv) > 1 else "sales.csv", parse_dates=["date"])
sales["revenue"] = sales.units * sales.price

table = sales.pivot_table(index="region", columns="product", values="revenue", aggfunc="sum", margins=True, margins_name="total")
print(f"{len(sales)} sales from {sales.date.min():%d %b} to {sales.date.max():%d %b %Y}, {sales.revenue.sum():,.0f} in all\n")
print(table.round(0).astype(int).to_string())

table.to_csv("by-region.csv")

months = sales.groupby([sales.date.dt.to_period("M"), "region"]).revenue.sum().unstack()
fig, ax = plt.subplots(figsize=(8, 4.5))
for region in months:
    ax.plot(months.index.astype(str), months[region], marker="o", label=region)
ax.set(title="Revenue by month", xlabel="Month", ylabel="Revenue (EUR)")
ax.legend()
plt.show()
